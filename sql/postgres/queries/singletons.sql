-- name: take_singleton
-- params: name, owner, lease
-- Take a task that one process at a time does, if it is due and nobody is at it.
INSERT INTO {singleton} AS s (name, leased_by, leased_until)
VALUES (:name, :owner, {now + :lease seconds})
ON CONFLICT (name) DO UPDATE
    SET leased_by = excluded.leased_by,
        leased_until = excluded.leased_until
    WHERE (s.leased_until IS NULL OR s.leased_until < {now})
      AND (s.next_run_at IS NULL OR s.next_run_at <= {now})
RETURNING s.last_run_at, s.next_run_at;

-- name: finish_singleton
-- params: name, owner, next_at, next_in
-- Note that the task was done, and when it is due again.
UPDATE {singleton}
SET leased_by = NULL,
    leased_until = NULL,
    last_run_at = {now},
    next_run_at = coalesce(:next_at::timestamptz, {now + :next_in::double precision seconds})
WHERE name = :name AND leased_by = :owner
RETURNING name;

-- name: list_singletons
-- params:
-- The tasks that one process at a time does.
SELECT s.name, s.leased_by, s.leased_until, s.last_run_at, s.next_run_at
FROM {singleton} s
ORDER BY s.name;

-- name: advance_singleton
-- params: name, schedule, expected, next_at, ran
-- Set when the schedule is due next, if nobody else has done so since it was read. Where it `ran`, not while it is paused.
INSERT INTO {singleton} AS s (name, next_run_at)
SELECT :name::text, :next_at::timestamptz
WHERE NOT :ran OR NOT EXISTS (
    SELECT 1 FROM {pause} p WHERE p.kind = 'schedule' AND p.name = :schedule AND (p.until IS NULL OR p.until > {now})
)
ON CONFLICT (name) DO UPDATE
    SET next_run_at = excluded.next_run_at,
        last_run_at = CASE WHEN :ran THEN {now} ELSE s.last_run_at END
    WHERE s.next_run_at IS NOT DISTINCT FROM :expected::timestamptz
RETURNING s.name;
