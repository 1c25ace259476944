-- name: blocker_references
-- params: ids
-- Jobs outside these chains that still wait for one of them.
SELECT b.job_id, j.chain_id, b.blocked_by_chain_id
FROM json_each(:ids) i
CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = i.value
JOIN {job} j ON j.id = b.job_id
WHERE j.status NOT IN ('completed', 'cancelled')
  AND j.chain_id NOT IN (SELECT value FROM json_each(:ids))
ORDER BY b.job_id, b."index";

-- name: delete_references
-- params: ids
-- Forget that these chains were blockers.
DELETE FROM {job_blocker}
WHERE blocked_by_chain_id IN (SELECT value FROM json_each(:ids));

-- name: delete_chains
-- params: ids
-- Delete every job of these chains; their attempts, events and blocker rows go with them.
DELETE FROM {job}
WHERE chain_id IN (SELECT value FROM json_each(:ids))
RETURNING chain_id, chain_type_name, deduplication_key;

-- name: delete_unused_keys
-- params: items
-- Drop deduplication keys that no chain carries any more.
DELETE FROM {job_key}
WHERE (chain_type_name, deduplication_key) IN (
    SELECT json_extract(value, '$.type_name'), json_extract(value, '$.key')
    FROM json_each(:items)
)
  AND NOT EXISTS (
      SELECT 1
      FROM {job} t
      WHERE t.chain_type_name = {job_key}.chain_type_name
        AND t.deduplication_key = {job_key}.deduplication_key
        AND t.deduplication_key IS NOT NULL
        AND t.continued_to IS NULL
  );

-- name: expired_chains
-- params: type_name, status, age, after_at, after_id, limit
-- Chains of a type that closed longer ago than an age, in the order they were created, beyond a point.
-- A chain closes after it was created, so the index on creation bounds the scan.
SELECT
    t.chain_id,
    t.chain_created_at,
    t.completed_at < {now - :age seconds}
    AND NOT EXISTS (
        SELECT 1
        FROM {job_blocker} b
        JOIN {job} j ON j.id = b.job_id
        WHERE b.blocked_by_chain_id = t.chain_id
          AND j.status NOT IN ('completed', 'cancelled')
          AND j.chain_id <> t.chain_id
    )
FROM {job} t
WHERE t.continued_to IS NULL
  AND t.chain_type_name = :type_name
  AND t.status = :status
  AND t.chain_created_at < {now - :age seconds}
  AND (t.chain_created_at, t.chain_id) > (coalesce(:after_at, ''), coalesce(:after_id, ''))
ORDER BY t.chain_created_at, t.chain_id
LIMIT :limit;

-- name: delete_middles
-- params: ids, keep, limit
-- Delete jobs of chains that are neither the first nor among the last: a limited number, the oldest first. The first stands for
-- the chain, and the tail says how it stands; so it looks as before, but for what is gone in between.
DELETE FROM {job}
WHERE rowid IN (
    SELECT m.rowid
    FROM json_each(:ids) i
    CROSS JOIN {job} m ON m.chain_id = i.value
    WHERE m.chain_index > 0
      AND m.chain_index <= (SELECT max(t.chain_index) FROM {job} t WHERE t.chain_id = i.value) - :keep
      AND m.continued_to IS NOT NULL
    LIMIT :limit
)
RETURNING id;

-- name: long_chains
-- params: type_name, longer, after_id, limit
-- Open chains of a type by id, beyond a point, and whether they have more jobs than so many.
SELECT t.chain_id, t.chain_index >= :longer
FROM {job} t
WHERE t.continued_to IS NULL
  AND t.chain_type_name = :type_name
  AND t.status IN ('blocked', 'pending', 'running')
  AND t.chain_id > coalesce(:after_id, '')
ORDER BY t.chain_id
LIMIT :limit;

-- name: long_histories
-- params: type_name, keep, limit
-- Pending jobs of a type that have been tried more often than attempts are kept, the most often tried first.
SELECT j.id
FROM {job} j
WHERE j.type_name = :type_name
  AND j.status = 'pending'
  AND j.attempt > 0
  AND j.attempt > :keep
  AND EXISTS (SELECT 1 FROM {job_attempt} a WHERE a.job_id = j.id AND a.attempt <= j.attempt - :keep)
ORDER BY j.attempt DESC
LIMIT :limit;

-- name: trim_attempts
-- params: ids, keep, limit
-- Delete the oldest attempts of jobs but the last few.
DELETE FROM {job_attempt}
WHERE (job_id, attempt) IN (
    SELECT o.job_id, o.attempt
    FROM json_each(:ids) i
    CROSS JOIN {job} j ON j.id = i.value
    CROSS JOIN {job_attempt} o ON o.job_id = j.id AND o.attempt <= j.attempt - :keep
    LIMIT :limit
)
RETURNING attempt;

-- name: trim_events
-- params: ids, keep, limit
-- Delete the oldest events of jobs but the last few.
DELETE FROM {job_event}
WHERE id IN (
    SELECT o.id
    FROM json_each(:ids) i
    CROSS JOIN {job_event} o ON o.job_id = i.value
    WHERE o.id <= (SELECT k.id FROM {job_event} k WHERE k.job_id = i.value ORDER BY k.id DESC LIMIT 1 OFFSET :keep)
    LIMIT :limit
)
RETURNING id;
