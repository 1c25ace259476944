-- name: blocker_references
-- params: ids
-- Jobs outside these chains that still wait for one of them.
SELECT b.job_id, j.chain_id, b.blocked_by_chain_id
FROM unnest(:ids::{id_type}[]) AS i (id)
CROSS JOIN LATERAL (
    SELECT b.job_id, b.blocked_by_chain_id, b.index
    FROM {job_blocker} b
    WHERE b.blocked_by_chain_id = i.id
    OFFSET 0
) b
CROSS JOIN LATERAL (SELECT j.chain_id, j.status FROM {job} j WHERE j.id = b.job_id OFFSET 0) j
WHERE j.status NOT IN ('completed', 'cancelled')
  AND j.chain_id <> ALL (:ids::{id_type}[])
ORDER BY b.job_id, b.index;

-- name: delete_references
-- params: ids
-- Forget that these chains were blockers.
DELETE FROM {job_blocker} b
WHERE b.blocked_by_chain_id = ANY (:ids::{id_type}[]);

-- name: delete_chains
-- params: ids
-- Delete every job of these chains; their attempts, events and blocker rows go with them.
DELETE FROM {job} j
WHERE j.chain_id = ANY (:ids::{id_type}[])
RETURNING j.chain_id, j.chain_type_name, j.deduplication_key;

-- name: delete_unused_keys
-- params: items
-- Drop deduplication keys that no chain carries any more. By their place: one that somebody has touched meanwhile has moved,
-- and is not found.
DELETE FROM {job_key} k
WHERE k.ctid = ANY (ARRAY(
    SELECT found.place
    FROM json_to_recordset(:items::json) AS i (type_name text, key text)
    CROSS JOIN LATERAL (
        SELECT k.ctid AS place
        FROM {job_key} k
        WHERE k.chain_type_name = i.type_name AND k.deduplication_key = i.key
        LIMIT 1
    ) found
    WHERE NOT EXISTS (
        SELECT 1
        FROM {job} t
        WHERE t.chain_type_name = i.type_name AND t.deduplication_key = i.key AND t.continued_to IS NULL
    )
));

-- name: expired_chains
-- params: type_name, status, age, after_at, after_id, limit
-- Chains of a type that closed longer ago than an age, in the order they were created, beyond a point.
-- A chain closes after it was created, so the index on creation bounds the scan.
SELECT t.chain_id, t.chain_created_at, t.completed_at < {now - :age seconds}
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
  AND t.status = :status::{job_status}
  AND t.chain_created_at < {now - :age seconds}
  AND (t.chain_created_at, t.chain_id) > (coalesce(:after_at::timestamptz, '-infinity'), :after_id::{id_type})
ORDER BY t.chain_created_at, t.chain_id
LIMIT :limit;

-- name: delete_middles
-- params: ids, keep, limit
-- Delete jobs of chains that are neither the first nor among the last: a limited number, the oldest first. The first stands for
-- the chain, and the tail says how it stands; so it looks as before, but for what is gone in between.
DELETE FROM {job} j
WHERE j.id = ANY (ARRAY(
    SELECT m.id
    FROM {ids} i
    CROSS JOIN LATERAL (
        SELECT t.chain_index FROM {job} t WHERE t.chain_id = i.id ORDER BY t.chain_index DESC LIMIT 1
    ) tail
    CROSS JOIN LATERAL (
        SELECT m.id
        FROM {job} m
        WHERE m.chain_id = i.id
          AND m.chain_index > 0
          AND m.chain_index <= tail.chain_index - :keep::integer
          AND m.continued_to IS NOT NULL
        ORDER BY m.chain_index
        LIMIT :limit::integer
    ) m
    LIMIT :limit::integer
))
RETURNING j.id;

-- name: long_chains
-- params: type_name, longer, after_id, limit
-- Open chains of a type by id, beyond a point, and whether they have more jobs than so many.
SELECT t.chain_id, t.chain_index >= :longer::integer
FROM {job} t
WHERE t.continued_to IS NULL
  AND t.chain_type_name = :type_name
  AND t.status IN ('blocked', 'pending', 'running')
  AND (:after_id::{id_type} IS NULL OR t.chain_id > :after_id::{id_type})
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
  AND j.attempt > :keep::integer
  AND EXISTS (SELECT 1 FROM {job_attempt} a WHERE a.job_id = j.id AND a.attempt <= j.attempt - :keep::integer)
ORDER BY j.attempt DESC
LIMIT :limit;

-- name: trim_attempts
-- params: ids, keep, limit
-- Delete the oldest attempts of jobs but the last few.
DELETE FROM {job_attempt} a
USING (
    SELECT o.job_id, o.attempt
    FROM {ids} i
    JOIN {job} j ON j.id = i.id
    CROSS JOIN LATERAL (
        SELECT o.job_id, o.attempt
        FROM {job_attempt} o
        WHERE o.job_id = j.id AND o.attempt <= j.attempt - :keep::integer
        ORDER BY o.attempt
        LIMIT :limit::integer
    ) o
    LIMIT :limit::integer
) old
WHERE a.job_id = old.job_id AND a.attempt = old.attempt
RETURNING a.attempt;

-- name: trim_events
-- params: ids, keep, limit
-- Delete the oldest events of jobs but the last few.
DELETE FROM {job_event} e
USING (
    SELECT o.id
    FROM {ids} i
    CROSS JOIN LATERAL (
        SELECT o.id FROM {job_event} o WHERE o.job_id = i.id ORDER BY o.id DESC OFFSET :keep::integer LIMIT :limit::integer
    ) o
    LIMIT :limit::integer
) old
WHERE e.id = old.id
RETURNING e.id;
