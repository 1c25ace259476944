-- name: job_types
-- params:
-- The types of all jobs, by jumping from one to the next in the index.
WITH RECURSIVE found (name) AS (
    SELECT min(j.type_name) FROM {job} j
    UNION ALL
    SELECT (SELECT min(j.type_name) FROM {job} j WHERE j.type_name > found.name)
    FROM found
    WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL;

-- name: _jobs_by_age
-- A page of jobs by age: each (type, status) pair gives its first rows in index order, and the merge takes the page.
-- The cursor comes before the span: of two bounds on one side SQLite seeks to the first and only filters by the second.
FROM json_each(:types) type
CROSS JOIN json_each(:statuses) state
CROSS JOIN {job} j ON j.rowid IN (
    SELECT i.rowid
    FROM {job} i
    WHERE i.type_name = type.value
      AND i.status = state.value
      AND (:chain_types IS NULL OR i.chain_type_name IN (SELECT ct.value FROM json_each(:chain_types) ct))
      AND (i.created_at, i.id) {beyond} (coalesce(:at, {edge}), :id)
      AND i.created_at >= coalesce(:since, '-infinity')
      AND i.created_at < coalesce(:until, 'infinity')
      AND (:error_codes IS NULL OR EXISTS (
          SELECT 1
          FROM json_each(:error_codes) c
          WHERE c.value IN (i.error_code, substr(i.error_code, 1, instr(i.error_code, ':')))
      ))
    ORDER BY i.created_at {direction}, i.id {direction}
    LIMIT :limit
);

-- name: list_jobs
-- params: types, chain_types, statuses, error_codes, since, until, at, id, limit
-- A page of jobs by age.
SELECT {j_columns}
{_jobs_by_age}
ORDER BY j.created_at {direction}, j.id {direction}
LIMIT :limit;

-- name: scan_jobs
-- params: types, chain_types, statuses, error_codes, since, until, at, id, limit
-- A page of jobs by age: only id, creation, and id again, to look at many.
SELECT j.id, j.created_at, j.id
{_jobs_by_age}
ORDER BY j.created_at {direction}, j.id {direction}
LIMIT :limit;

-- name: _named_jobs
-- A page of the named jobs, or of the jobs of the named chains, by age.
FROM {job} j
WHERE j.id IN (
        SELECT n.value FROM json_each(:job_ids) n
        UNION ALL
        SELECT m.id
        FROM json_each(:chain_ids) n
        CROSS JOIN {job} m ON m.chain_id = n.value
    )
  AND (:types IS NULL OR j.type_name IN (SELECT n.value FROM json_each(:types) n))
  AND (:chain_types IS NULL
       OR j.chain_type_name IN (SELECT n.value FROM json_each(:chain_types) n))
  AND (:statuses IS NULL
       OR j.status IN (SELECT n.value FROM json_each(:statuses) n))
  AND j.created_at >= coalesce(:since, '-infinity')
  AND j.created_at < coalesce(:until, 'infinity')
  AND (j.created_at, j.id) {beyond} (coalesce(:at, {edge}), :id)
  AND (:error_codes IS NULL OR EXISTS (
      SELECT 1
      FROM json_each(:error_codes) c
      WHERE c.value IN (j.error_code, substr(j.error_code, 1, instr(j.error_code, ':')))
  ));

-- name: list_jobs_named
-- params: job_ids, chain_ids, types, chain_types, statuses, error_codes, since, until, at, id, limit
-- A page of the named jobs, or of the jobs of the named chains, by age.
SELECT {j_columns}
{_named_jobs}
ORDER BY j.created_at {direction}, j.id {direction}
LIMIT :limit;

-- name: scan_jobs_named
-- params: job_ids, chain_ids, types, chain_types, statuses, error_codes, since, until, at, id, limit
-- A page of the named jobs, or of the jobs of the named chains, by age: only id, creation, and id again, to look at many.
SELECT j.id, j.created_at, j.id
{_named_jobs}
ORDER BY j.created_at {direction}, j.id {direction}
LIMIT :limit;

-- name: _chains_by_age
-- A page of chains by age, through the index on tails: each (type, status) pair gives its first rows in index order.
FROM json_each(:types) type
CROSS JOIN json_each(:statuses) state
CROSS JOIN {job} t ON t.rowid IN (
    SELECT i.rowid
    FROM {job} i
    WHERE i.continued_to IS NULL
      AND i.chain_type_name = type.value
      AND i.status = state.value
      AND (i.chain_created_at, i.chain_id) {beyond} (coalesce(:at, {edge}), :id)
      AND i.chain_created_at >= coalesce(:since, '-infinity')
      AND i.chain_created_at < coalesce(:until, 'infinity')
      AND NOT (:root_only AND EXISTS (
          SELECT 1 FROM {job_blocker} b WHERE b.blocked_by_chain_id = i.chain_id
      ))
      AND (:error_codes IS NULL OR EXISTS (
          SELECT 1
          FROM json_each(:error_codes) c
          WHERE c.value IN (i.error_code, substr(i.error_code, 1, instr(i.error_code, ':')))
      ))
    ORDER BY i.chain_created_at {direction}, i.chain_id {direction}
    LIMIT :limit
)
CROSS JOIN {job} r ON r.id = t.chain_id;

-- name: list_chains
-- params: types, statuses, root_only, error_codes, since, until, at, id, limit
-- A page of chains by age.
SELECT {chain_columns}
{_chains_by_age}
ORDER BY t.chain_created_at {direction}, t.chain_id {direction}
LIMIT :limit;

-- name: scan_chains
-- params: types, statuses, root_only, error_codes, since, until, at, id, limit
-- A page of chains by age: only id, creation, and newest job, to look at many.
SELECT r.id, r.created_at, t.id
{_chains_by_age}
ORDER BY t.chain_created_at {direction}, t.chain_id {direction}
LIMIT :limit;

-- name: _named_chains
-- A page of the named chains, or of the chains of the named jobs, by age.
FROM {job} r
JOIN {job} t ON t.id = (SELECT l.id FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1)
WHERE r.id IN (
        SELECT n.value FROM json_each(:chain_ids) n
        UNION ALL
        SELECT m.chain_id
        FROM json_each(:job_ids) n
        CROSS JOIN {job} m ON m.id = n.value
    )
  AND r.chain_id = r.id
  AND (:types IS NULL OR r.type_name IN (SELECT n.value FROM json_each(:types) n))
  AND (:statuses IS NULL
       OR t.status IN (SELECT n.value FROM json_each(:statuses) n))
  AND r.created_at >= coalesce(:since, '-infinity')
  AND r.created_at < coalesce(:until, 'infinity')
  AND (r.created_at, r.id) {beyond} (coalesce(:at, {edge}), :id)
  AND NOT (:root_only AND EXISTS (SELECT 1 FROM {job_blocker} b WHERE b.blocked_by_chain_id = r.id))
  AND (:error_codes IS NULL OR EXISTS (
      SELECT 1
      FROM json_each(:error_codes) c
      WHERE c.value IN (t.error_code, substr(t.error_code, 1, instr(t.error_code, ':')))
  ));

-- name: list_chains_named
-- params: chain_ids, job_ids, types, statuses, root_only, error_codes, since, until, at, id, limit
-- A page of the named chains, or of the chains of the named jobs, by age.
SELECT {chain_columns}
{_named_chains}
ORDER BY r.created_at {direction}, r.id {direction}
LIMIT :limit;

-- name: scan_chains_named
-- params: chain_ids, job_ids, types, statuses, root_only, error_codes, since, until, at, id, limit
-- A page of the named chains, or of the chains of the named jobs, by age: only id, creation, and newest job, to look at many.
SELECT r.id, r.created_at, t.id
{_named_chains}
ORDER BY r.created_at {direction}, r.id {direction}
LIMIT :limit;

-- name: list_chain_jobs
-- params: chain_id, index, limit
-- A page of the jobs of a chain, in the order of the chain.
SELECT {j_columns}
FROM {job} j
WHERE j.chain_id = :chain_id
  AND (:index IS NULL OR j.chain_index {beyond} :index)
ORDER BY j.chain_index {direction}
LIMIT :limit;

-- name: list_blocked_jobs
-- params: chain_id, at, id, limit
-- A page of the jobs that a chain blocks now, by age.
SELECT {j_columns}
FROM {job_blocker} b
JOIN {job} j ON j.id = b.job_id
WHERE b.blocked_by_chain_id = :chain_id
  AND j.status = 'blocked'
  AND NOT EXISTS (
      SELECT 1
      FROM {job} t
      WHERE t.chain_id = b.blocked_by_chain_id AND t.continued_to IS NULL AND t.status = 'completed'
  )
  AND (j.created_at, j.id) {beyond} (coalesce(:at, {edge}), :id)
ORDER BY j.created_at {direction}, j.id {direction}
LIMIT :limit;

-- name: list_attempts
-- params: job_id, before, limit
-- The last finished attempts of a job before one, oldest first.
SELECT *
FROM (
    SELECT
        a.job_id, a.attempt, a.worker_id, a.claimed_at, a.started_at, a.finished_at, a.outcome, a.error_code, a.error_detail,
        a.retry_at
    FROM {job_attempt} a
    WHERE a.job_id = :job_id AND (:before IS NULL OR a.attempt < :before)
    ORDER BY a.attempt DESC
    LIMIT :limit
) last
ORDER BY last.attempt;

-- name: list_events
-- params: job_id, limit
-- What was last done to a job, oldest first.
SELECT last.event, last.at, last.actor, last.detail
FROM (
    SELECT e.id, e.event, e.at, e.actor, e.detail
    FROM {job_event} e
    WHERE e.job_id = :job_id
    ORDER BY e.id DESC
    LIMIT :limit
) last
ORDER BY last.id;
