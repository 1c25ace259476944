-- name: lock_rows
-- params: closing, changing, wait
-- Lock jobs in id order: those that are about to close a chain, with the first jobs of these chains, and those that only
-- change. Without waiting, what somebody else has locked is left out.
SELECT unnest({lock_jobs}(:closing::{id_type}[], :changing::{id_type}[], :wait::boolean));

-- name: complete_jobs
-- params: worker, items, outputs, closing, continuing, wait, checked
-- Complete jobs, insert their continuations, and release what waited for chains that end. A job whose lease is no longer held
-- is told as lost, and nothing is written for it. Of what went well nothing comes back.
-- A function, since several statements in one round trip must each see what was committed before it.
SELECT c.what, c.id, c.type_name
FROM {complete_jobs}(
    :worker::text, :items::json, :outputs::text[], :closing::{id_type}[], :continuing::{id_type}[], :wait::boolean,
    :checked::boolean
) c;

-- name: complete_job
-- params: worker, id, chain_id, token, output, outcome, holder, waited, strict, checked
-- Complete one job that closes its chain, in half the time that complete_jobs would take.
SELECT c.what, c.id, c.type_name
FROM {complete_job}(
    :worker::text, :id::{id_type}, :chain_id::{id_type}, :token::bigint, :output::text, :outcome::text, :holder::text,
    :waited::double precision, :strict::boolean, :checked::boolean, NULL::{id_type}, NULL::text, NULL::text, NULL::integer,
    NULL::timestamptz, NULL::double precision, NULL::integer, NULL::integer, NULL::text, NULL::text, NULL::text,
    NULL::text, NULL::text, NULL::boolean
) c;

-- name: continue_job
-- params: worker, id, chain_id, token, output, outcome, holder, waited, strict, checked, next_id, next_type, next_input, next_priority, next_at, next_after, next_max_attempts, next_blockers, next_trace, next_until, next_on_failed, next_limit_name, next_limit_key, next_limit_strict
-- Complete one job and continue its chain, in half the time that complete_jobs would take.
SELECT c.what, c.id, c.type_name
FROM {complete_job}(
    :worker::text, :id::{id_type}, :chain_id::{id_type}, :token::bigint, :output::text, :outcome::text, :holder::text,
    :waited::double precision, :strict::boolean, :checked::boolean, :next_id::{id_type}, :next_type::text, :next_input::text,
    :next_priority::integer, :next_at::timestamptz, :next_after::double precision, :next_max_attempts::integer,
    :next_blockers::integer, :next_trace::text, :next_until::text, :next_on_failed::text,
    :next_limit_name::text, :next_limit_key::text, :next_limit_strict::boolean
) c;

-- name: release_closed
-- params: ids
-- Chains have failed or were cancelled: free what waits for nothing more of those that wait until their blockers have closed.
-- Whether the transaction sees only what was committed before it began, and what was freed.
SELECT current_setting('transaction_isolation') IN ('repeatable read', 'serializable'), freed.id, freed.type_name
FROM (VALUES (1)) one
LEFT JOIN {release_dependants}(:ids::{id_type}[], false) freed ON true;

-- name: reopen_blockers
-- params: ids
-- Closed chains are about to be open again: count them up in the jobs that wait until their blockers have closed. Whether the
-- transaction sees only what was committed before it began.
WITH waiting AS MATERIALIZED (
    SELECT b.job_id, count(*) AS n
    FROM {ids} c
    CROSS JOIN LATERAL (SELECT b.job_id FROM {job_blocker} b WHERE b.blocked_by_chain_id = c.id OFFSET 0) b
    GROUP BY b.job_id
    {few}
),
locked AS MATERIALIZED (
    SELECT j.id, waiting.n
    FROM waiting
    JOIN {job} j ON j.id = waiting.job_id
    WHERE j.blockers_until = 'closed'
    ORDER BY j.id
    FOR NO KEY UPDATE OF j
),
counted AS (
    UPDATE {job} j
    SET open_blockers = j.open_blockers + locked.n
    FROM locked
    WHERE j.id = locked.id
    RETURNING j.id
)
SELECT current_setting('transaction_isolation') IN ('repeatable read', 'serializable'), (SELECT count(*) FROM counted);

-- name: recount_blockers
-- params: ids
-- Count anew the open blockers of jobs that wait until theirs have closed, and free those that have none. Their rows are locked.
SELECT freed.id, freed.type_name FROM {recount_blockers}(:ids::{id_type}[]) freed;

-- name: overdue_joins
-- params: limit
-- Jobs that wait until their blockers have closed, and whose blockers all have: who closed the last did not free them.
SELECT j.id
FROM {job} j
WHERE j.status = 'blocked' AND j.blockers_until = 'closed'
  AND NOT EXISTS (
    SELECT 1
    FROM {job_blocker} b
    CROSS JOIN LATERAL (
        SELECT t.status FROM {job} t WHERE t.chain_id = b.blocked_by_chain_id ORDER BY t.chain_index DESC LIMIT 1
    ) t
    WHERE b.job_id = j.id AND t.status IN ('blocked', 'pending', 'running')
  )
ORDER BY j.id
LIMIT :limit;
