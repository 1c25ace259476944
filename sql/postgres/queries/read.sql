-- name: job_types
-- params:
-- The types of all jobs, by jumping from one to the next in the index.
WITH RECURSIVE found (name) AS (
    (SELECT j.type_name FROM {job} j ORDER BY j.type_name LIMIT 1)
    UNION ALL
    SELECT (SELECT j.type_name FROM {job} j WHERE j.type_name > found.name ORDER BY j.type_name LIMIT 1)
    FROM found
    WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL;

-- name: _jobs_by_age
-- A page of jobs by age: each (type, status) pair gives its first rows in index order, and the merge takes the page.
-- The planner takes each array for 10 entries; of JSON, 100 each, it would expect too many pairs, and compile the query.
-- Nor may it guess how rare error codes are, or it would: of coalesce() it expects half.
-- Of a span between two unknown times it expects one row in 200, few enough to sort them all: as a row, one end stands alone.
FROM (
    SELECT c.id
    FROM unnest(:types::text[]) AS type (name)
    CROSS JOIN unnest(:statuses::text[]) AS state (name)
    CROSS JOIN LATERAL (
        SELECT j.id, j.created_at
        FROM {job} j
        WHERE j.type_name = type.name
          AND j.status = state.name::{job_status}
          AND (:chain_types::text[] IS NULL OR j.chain_type_name = ANY (:chain_types::text[]))
          AND (j.created_at, 0) >= (coalesce(:since::timestamptz, '-infinity'), 0)
          AND j.created_at < coalesce(:until::timestamptz, 'infinity')
          AND (j.created_at, j.id) {beyond} (coalesce(:at::timestamptz, {edge}), :id::{id_type})
          AND coalesce(
              :error_codes::text[] IS NULL
              OR ARRAY[j.error_code, split_part(j.error_code, ':', 1) || ':'] && :error_codes::text[],
              false
          )
        ORDER BY j.created_at {direction}, j.id {direction}
        LIMIT :limit
    ) c
    ORDER BY c.created_at {direction}, c.id {direction}
    LIMIT :limit
) page
JOIN {job} j ON j.id = page.id;

-- name: list_jobs
-- params: types, chain_types, statuses, error_codes, since, until, at, id, limit
-- A page of jobs by age.
SELECT {j_columns}
{_jobs_by_age}
ORDER BY j.created_at {direction}, j.id {direction};

-- name: scan_jobs
-- params: types, chain_types, statuses, error_codes, since, until, at, id, limit
-- A page of jobs by age: only id, creation, and id again, to look at many.
SELECT j.id, j.created_at, j.id
{_jobs_by_age}
ORDER BY j.created_at {direction}, j.id {direction};

-- name: _named_jobs
-- A page of the named jobs, or of the jobs of the named chains, by age. OFFSET 0 keeps to looking up each of them.
FROM (
    SELECT n.id FROM unnest(:job_ids::{id_type}[]) AS n (id)
    UNION
    SELECT m.id
    FROM unnest(:chain_ids::{id_type}[]) AS n (id)
    CROSS JOIN LATERAL (SELECT m.id FROM {job} m WHERE m.chain_id = n.id OFFSET 0) m
) named
CROSS JOIN LATERAL (SELECT j.* FROM {job} j WHERE j.id = named.id OFFSET 0) j
WHERE (:types::text[] IS NULL OR j.type_name = ANY (:types::text[]))
  AND (:chain_types::text[] IS NULL OR j.chain_type_name = ANY (:chain_types::text[]))
  AND (:statuses::text[] IS NULL OR j.status = ANY (:statuses::text[]::{job_status}[]))
  AND j.created_at >= coalesce(:since::timestamptz, '-infinity')
  AND j.created_at < coalesce(:until::timestamptz, 'infinity')
  AND (j.created_at, j.id) {beyond} (coalesce(:at::timestamptz, {edge}), :id::{id_type})
  AND (:error_codes::text[] IS NULL
       OR ARRAY[j.error_code, split_part(j.error_code, ':', 1) || ':'] && :error_codes::text[]);

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
FROM (
    SELECT c.id, c.chain_id
    FROM unnest(:types::text[]) AS type (name)
    CROSS JOIN unnest(:statuses::text[]) AS state (name)
    CROSS JOIN LATERAL (
        SELECT t.id, t.chain_id, t.chain_created_at
        FROM {job} t
        WHERE t.continued_to IS NULL
          AND t.chain_type_name = type.name
          AND t.status = state.name::{job_status}
          AND (t.chain_created_at, 0) >= (coalesce(:since::timestamptz, '-infinity'), 0)
          AND t.chain_created_at < coalesce(:until::timestamptz, 'infinity')
          AND (t.chain_created_at, t.chain_id) {beyond} (coalesce(:at::timestamptz, {edge}), :id::{id_type})
          AND NOT (:root_only AND EXISTS (
              SELECT 1 FROM {job_blocker} b WHERE b.blocked_by_chain_id = t.chain_id
          ))
          AND coalesce(
              :error_codes::text[] IS NULL
              OR ARRAY[t.error_code, split_part(t.error_code, ':', 1) || ':'] && :error_codes::text[],
              false
          )
        ORDER BY t.chain_created_at {direction}, t.chain_id {direction}
        LIMIT :limit
    ) c
    ORDER BY c.chain_created_at {direction}, c.chain_id {direction}
    LIMIT :limit
) page
JOIN {job} t ON t.id = page.id
JOIN {job} r ON r.id = page.chain_id;

-- name: list_chains
-- params: types, statuses, root_only, error_codes, since, until, at, id, limit
-- A page of chains by age.
SELECT {chain_columns}
{_chains_by_age}
ORDER BY r.created_at {direction}, r.id {direction};

-- name: scan_chains
-- params: types, statuses, root_only, error_codes, since, until, at, id, limit
-- A page of chains by age: only id, creation, and newest job, to look at many.
SELECT r.id, r.created_at, t.id
{_chains_by_age}
ORDER BY r.created_at {direction}, r.id {direction};

-- name: _named_chains
-- A page of the named chains, or of the chains of the named jobs, by age. OFFSET 0 keeps to looking up each of them.
FROM (
    SELECT n.id FROM unnest(:chain_ids::{id_type}[]) AS n (id)
    UNION
    SELECT m.chain_id
    FROM unnest(:job_ids::{id_type}[]) AS n (id)
    CROSS JOIN LATERAL (SELECT m.chain_id FROM {job} m WHERE m.id = n.id OFFSET 0) m
) named
CROSS JOIN LATERAL (SELECT r.* FROM {job} r WHERE r.id = named.id AND r.chain_id = r.id OFFSET 0) r
CROSS JOIN LATERAL (SELECT t.* FROM {job} t WHERE t.chain_id = r.id ORDER BY t.chain_index DESC LIMIT 1) t
WHERE (:types::text[] IS NULL OR r.type_name = ANY (:types::text[]))
  AND (:statuses::text[] IS NULL OR t.status = ANY (:statuses::text[]::{job_status}[]))
  AND r.created_at >= coalesce(:since::timestamptz, '-infinity')
  AND r.created_at < coalesce(:until::timestamptz, 'infinity')
  AND (r.created_at, r.id) {beyond} (coalesce(:at::timestamptz, {edge}), :id::{id_type})
  AND NOT (:root_only AND EXISTS (SELECT 1 FROM {job_blocker} b WHERE b.blocked_by_chain_id = r.id))
  AND (:error_codes::text[] IS NULL
       OR ARRAY[t.error_code, split_part(t.error_code, ':', 1) || ':'] && :error_codes::text[]);

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
WHERE j.chain_id = :chain_id::{id_type}
  AND (:index::integer IS NULL OR j.chain_index {beyond} :index::integer)
ORDER BY j.chain_index {direction}
LIMIT :limit;

-- name: list_blocked_jobs
-- params: chain_id, at, id, limit
-- A page of the jobs that a chain blocks now, by age.
SELECT {j_columns}
FROM {job_blocker} b
JOIN {job} j ON j.id = b.job_id
WHERE b.blocked_by_chain_id = :chain_id::{id_type}
  AND j.status = 'blocked'
  AND NOT EXISTS (
      SELECT 1
      FROM {job} t
      WHERE t.chain_id = b.blocked_by_chain_id AND t.continued_to IS NULL AND t.status = 'completed'
  )
  AND (j.created_at, j.id) {beyond} (coalesce(:at::timestamptz, {edge}), :id::{id_type})
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
    WHERE a.job_id = :job_id::{id_type} AND (:before::integer IS NULL OR a.attempt < :before::integer)
    ORDER BY a.attempt DESC
    LIMIT :limit::bigint
) last
ORDER BY last.attempt;

-- name: list_events
-- params: job_id, limit
-- What was last done to a job, oldest first.
SELECT last.event, last.at, last.actor, last.detail
FROM (
    SELECT e.id, e.event, e.at, e.actor, e.detail
    FROM {job_event} e
    WHERE e.job_id = :job_id::{id_type}
    ORDER BY e.id DESC
    LIMIT :limit::bigint
) last
ORDER BY last.id;
