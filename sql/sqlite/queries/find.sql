-- name: find_ids
-- params: part, low, high, furthest, limit
-- The ids that begin or end so: those from `low` to `high` by the index, others among so many of the greatest, which are the newest.
SELECT found.id
FROM (
    SELECT i.id FROM (SELECT j.id FROM {job} j WHERE j.id BETWEEN :low AND :high ORDER BY j.id LIMIT :limit) i
    UNION
    SELECT e.id
    FROM (
        SELECT n.id
        FROM (SELECT j.id FROM {job} j ORDER BY j.id DESC LIMIT :furthest) n
        WHERE substr(CAST(n.id AS TEXT), -length(:part)) = :part
           OR (:low IS NULL AND substr(CAST(n.id AS TEXT), 1, length(:part)) = :part)
        LIMIT :limit
    ) e
) found
ORDER BY found.id
LIMIT :limit;

-- name: fitting_jobs
-- params: ids, stranded, worker, key, fields
-- Which of these jobs are stranded, if that is asked for; which this worker, by id or name, has in hand or has tried; which carry
-- this key; which have all these fields in their input.
SELECT j.id
FROM json_each(:ids) i
CROSS JOIN {job} j ON j.id = i.value
WHERE (
      :worker IS NULL
      OR substr(j.leased_by || '@', 1, length(:worker) + 1) = :worker || '@'
      OR substr(j.completed_by || '@', 1, length(:worker) + 1) = :worker || '@'
      OR EXISTS (
          SELECT 1
          FROM {job_attempt} a
          WHERE a.job_id = j.id AND substr(a.worker_id || '@', 1, length(:worker) + 1) = :worker || '@'
      )
  )
  AND (:key IS NULL OR :key IN (j.deduplication_key, j.limit_key))
  AND (:fields = '[]' OR json_valid(j.input))
  AND NOT EXISTS (
      SELECT 1
      FROM json_each(:fields) f
      WHERE NOT EXISTS (
          -- From the whole input down along the path: a field of a field, as deep as it goes. The plus takes off the column's
          -- affinity, with which numbers would be compared as text.
          WITH RECURSIVE inside (depth, type, value) AS (
              SELECT 0, json_type(j.input), +j.input
              UNION ALL
              SELECT inside.depth + 1, e.type, e.value
              FROM inside
              CROSS JOIN json_each(CASE inside.type WHEN 'object' THEN inside.value ELSE '{}' END) e
              WHERE e.key = json_extract(f.value, '$.path[' || inside.depth || ']')
          )
          SELECT 1
          FROM inside
          WHERE inside.depth = json_array_length(f.value, '$.path')
            AND CASE json_type(f.value, '$.value')
                WHEN 'text' THEN inside.type = 'text' AND inside.value = json_extract(f.value, '$.value')
                WHEN 'integer' THEN inside.type IN ('integer', 'real') AND inside.value = json_extract(f.value, '$.value')
                WHEN 'real' THEN inside.type IN ('integer', 'real') AND inside.value = json_extract(f.value, '$.value')
                ELSE inside.type = json_type(f.value, '$.value')
            END
      )
  )
  AND (NOT :stranded OR (j.status = 'blocked' AND (
      SELECT count(*) FILTER (WHERE t.status <> 'completed') = 0
          OR (j.blockers_until = 'completed' AND count(*) FILTER (WHERE t.status IN ('failed', 'cancelled')) > 0)
      FROM {job_blocker} b
      JOIN {job} t ON t.id = (
          SELECT l.id FROM {job} l WHERE l.chain_id = b.blocked_by_chain_id ORDER BY l.chain_index DESC LIMIT 1
      )
      WHERE b.job_id = j.id
  )));

-- name: keyed_chains
-- params: types, key, limit
-- The newest chains with this deduplication key.
SELECT t.chain_id
FROM json_each(:types) type
CROSS JOIN {job} t ON t.rowid IN (
    SELECT i.rowid
    FROM {job} i
    WHERE i.chain_type_name = type.value AND i.deduplication_key = :key AND i.continued_to IS NULL
    ORDER BY i.chain_created_at DESC
    LIMIT :limit
)
ORDER BY t.chain_created_at DESC
LIMIT :limit;
