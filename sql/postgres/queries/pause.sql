-- name: pause
-- params: kind, names, until, reason, actor
-- Pause types or schedules, or say something else of a pause; nothing where its end is not in the future.
INSERT INTO {pause} AS p (kind, name, since, until, reason, actor)
SELECT :kind::text, n.name, {now}, :until::timestamptz, :reason::text, :actor::text
FROM unnest(:names::text[]) AS n (name)
WHERE :until::timestamptz IS NULL OR :until::timestamptz > {now}
ORDER BY n.name
ON CONFLICT (kind, name) DO UPDATE
    SET since = CASE WHEN p.until IS NULL OR p.until > {now} THEN p.since ELSE excluded.since END,
        until = excluded.until,
        reason = excluded.reason,
        actor = excluded.actor
RETURNING p.name;

-- name: resume_types
-- params: names
-- End the pauses of types; without names, of all of them and of everything.
DELETE FROM {pause} p
WHERE p.kind = 'type' AND (:names::text[] IS NULL OR p.name = ANY (:names::text[]))
RETURNING p.name;

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
DELETE FROM {pause} WHERE until < {now - :age::double precision seconds};
