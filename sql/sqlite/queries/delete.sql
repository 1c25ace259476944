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
