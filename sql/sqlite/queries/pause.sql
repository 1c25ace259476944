-- name: pause
-- params: kind, names, until, reason, actor
-- Pause types or schedules, or say something else of a pause; nothing where its end is not in the future.
INSERT INTO {pause} AS p (kind, name, since, until, reason, actor)
SELECT :kind, n.value, {now}, :until, :reason, :actor
FROM json_each(:names) n
WHERE :until IS NULL OR :until > {now}
ON CONFLICT (kind, name) DO UPDATE
    SET since = CASE WHEN p.until IS NULL OR p.until > {now} THEN p.since ELSE excluded.since END,
        until = excluded.until,
        reason = excluded.reason,
        actor = excluded.actor
RETURNING name;

-- name: resume_types
-- params: names
-- End the pauses of types; without names, of all of them and of everything.
DELETE FROM {pause}
WHERE kind = 'type' AND (:names IS NULL OR name IN (SELECT n.value FROM json_each(:names) n))
RETURNING name;

-- name: resume_schedule
-- params: name
-- End the pause of a schedule. The row stays for a while: the ticks before its end were missed.
UPDATE {pause}
SET until = {now}
WHERE kind = 'schedule' AND name = :name AND (until IS NULL OR until > {now})
RETURNING name;

-- name: list_pauses
-- params: kind
-- The pauses of types or schedules, and whether each still lasts.
SELECT p.name, p.since, p.until, p.reason, p.actor, p.until IS NULL OR p.until > {now}
FROM {pause} p
WHERE p.kind = :kind
ORDER BY p.name;

-- name: forget_pauses
-- params: age
-- Remove the pauses that ended so many seconds ago.
DELETE FROM {pause} WHERE until < {now - :age seconds};
