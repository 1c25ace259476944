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
