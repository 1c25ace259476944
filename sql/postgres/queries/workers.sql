-- name: leave
-- params: worker
-- A worker has stopped. What it did lately stays.
DELETE FROM {worker} WHERE id = :worker;

-- name: list_workers
-- params: lost_after
-- The workers that are there, and those whose last sign of life is too long ago.
SELECT
    w.id, w.name, w.host, w.pid, w.version, w.started_at, w.last_seen_at, w.concurrency, w.busy, w.waiting, w.zombies, w.types,
    w.stopping, w.last_seen_at < {now - :lost_after::double precision seconds}
FROM {worker} w
ORDER BY w.started_at, w.id;

-- name: forget_workers
-- params: age
-- Remove the workers that nobody has heard of for so many seconds.
DELETE FROM {worker} WHERE last_seen_at < {now - :age::double precision seconds};

-- name: forget_rates
-- params: age
-- Remove what was done longer than so many seconds ago.
DELETE FROM {worker_rate} WHERE at < {now - :age::double precision seconds};
