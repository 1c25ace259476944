-- name: find_ids
-- params: part, low, high, furthest, limit
-- The ids that begin or end so: those from `low` to `high` by the index, others among so many of the greatest, which are the newest.
SELECT found.id
FROM (
    (
        SELECT j.id
        FROM {job} j
        WHERE j.id BETWEEN :low::{id_type} AND :high::{id_type}
        ORDER BY j.id
        LIMIT :limit
    )
    UNION
    (
        SELECT j.id
        FROM (SELECT j.id, j.id::text AS spelt FROM {job} j ORDER BY j.id DESC LIMIT :furthest) j
        WHERE right(j.spelt, length(:part::text)) = :part::text
           OR (:low::{id_type} IS NULL AND left(j.spelt, length(:part::text)) = :part::text)
        LIMIT :limit
    )
) found
ORDER BY found.id
LIMIT :limit;

-- name: fitting_jobs
-- params: ids, stranded, worker, key, fields
-- Which of these jobs are stranded, if that is asked for; which this worker, by id or name, has in hand or has tried; which carry
-- this key; which have all these fields in their input.
SELECT j.id
FROM {ids} AS i
JOIN {job} j ON j.id = i.id
WHERE (
      :worker::text IS NULL
      OR left(j.leased_by || '@', length(:worker::text) + 1) = :worker::text || '@'
      OR left(j.completed_by || '@', length(:worker::text) + 1) = :worker::text || '@'
      OR EXISTS (
          SELECT 1
          FROM {job_attempt} a
          WHERE a.job_id = j.id AND left(a.worker_id || '@', length(:worker::text) + 1) = :worker::text || '@'
      )
  )
  AND (:key::text IS NULL OR :key::text IN (j.deduplication_key, j.limit_key))
  AND NOT EXISTS (
      SELECT 1
      FROM jsonb_array_elements(:fields::jsonb) AS f (field)
      WHERE j.input #> ARRAY(SELECT jsonb_array_elements_text(f.field -> 'path')) IS DISTINCT FROM f.field -> 'value'
  )
  AND (NOT :stranded::boolean OR (j.status = 'blocked' AND EXISTS (
      SELECT 1
      FROM {job_blocker} b
      CROSS JOIN LATERAL (
          SELECT t.status FROM {job} t WHERE t.chain_id = b.blocked_by_chain_id ORDER BY t.chain_index DESC LIMIT 1
      ) t
      WHERE b.job_id = j.id
      HAVING count(*) FILTER (WHERE t.status <> 'completed') = 0
          OR (count(*) FILTER (WHERE t.status IN ('failed', 'cancelled')) > 0 AND j.blockers_until = 'completed')
  )));

-- name: keyed_chains
-- params: types, key, limit
-- The newest chains with this deduplication key.
SELECT t.chain_id
FROM unnest(:types::text[]) AS type (name)
CROSS JOIN LATERAL (
    SELECT t.chain_id, t.chain_created_at
    FROM {job} t
    WHERE t.chain_type_name = type.name
      AND t.deduplication_key = :key::text
      AND t.continued_to IS NULL
    ORDER BY t.chain_created_at DESC
    LIMIT :limit
) t
ORDER BY t.chain_created_at DESC
LIMIT :limit;
