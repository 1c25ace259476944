-- name: sign_of_life
-- params: worker, sign, rates
-- A worker's sign of life, and what it has done lately.
INSERT INTO {worker} (id, name, host, pid, version, concurrency, busy, waiting, zombies, stopping, types)
SELECT
    :worker, json_extract(:sign, '$.name'), json_extract(:sign, '$.host'), json_extract(:sign, '$.pid'),
    json_extract(:sign, '$.version'), json_extract(:sign, '$.concurrency'), json_extract(:sign, '$.busy'),
    json_extract(:sign, '$.waiting'), json_extract(:sign, '$.zombies'), json_extract(:sign, '$.stopping'),
    json_extract(:sign, '$.types')
WHERE true
ON CONFLICT (id) DO UPDATE
    SET last_seen_at = {now},
        busy = excluded.busy,
        waiting = excluded.waiting,
        zombies = excluded.zombies,
        stopping = excluded.stopping,
        types = excluded.types;

INSERT INTO {worker_rate} (worker_id, type_name, part, completed, failed)
SELECT
    :worker, json_extract(r.value, '$.type_name'), json_extract(r.value, '$.part'), json_extract(r.value, '$.completed'),
    json_extract(r.value, '$.failed')
FROM json_each(:rates) r
WHERE true
ON CONFLICT (worker_id, type_name, part) DO UPDATE
    SET at = {now},
        completed = excluded.completed,
        failed = excluded.failed;

-- name: leave
-- params: worker
-- A worker has stopped. What it did lately stays.
DELETE FROM {worker} WHERE id = :worker;

-- name: list_workers
-- params: lost_after
-- The workers that are there, and those whose last sign of life is too long ago.
SELECT
    w.id, w.name, w.host, w.pid, w.version, w.started_at, w.last_seen_at, w.concurrency, w.busy, w.waiting, w.zombies, w.types,
    w.stopping, w.last_seen_at < {now - :lost_after seconds}
FROM {worker} w
ORDER BY w.started_at, w.id;

-- name: forget_workers
-- params: age
-- Remove the workers that nobody has heard of for so many seconds.
DELETE FROM {worker} WHERE last_seen_at < {now - :age seconds};

-- name: forget_rates
-- params: age
-- Remove what was done longer than so many seconds ago.
DELETE FROM {worker_rate} WHERE at < {now - :age seconds};
