-- name: lock_chains
-- params: ids
-- Lock every job of these chains in id order.
SELECT j.id, j.chain_id
FROM {job} j
WHERE j.chain_id = ANY (:ids::{id_type}[])
ORDER BY j.id
FOR UPDATE;

-- name: cancel_tails
-- params: ids, actor, reason
-- Cancel open tails; a running one ends its attempt as cancelled.
WITH old AS MATERIALIZED (
    SELECT j.id, j.status, j.attempt, j.leased_by, j.last_attempt_at
    FROM {job} j
    WHERE j.id = ANY (:ids::{id_type}[])
      AND j.status IN ('blocked', 'pending', 'running')
    ORDER BY j.id
    FOR NO KEY UPDATE
),
cancelled AS (
    UPDATE {job} j
    SET status = 'cancelled',
        completed_at = {now},
        leased_by = NULL,
        leased_until = NULL,
        lease_token = NULL,
        suspect = false
    FROM old
    WHERE j.id = old.id
    RETURNING j.id, j.chain_id
),
attempt AS (
    INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, finished_at, outcome)
    SELECT old.id, old.attempt, old.leased_by, old.last_attempt_at, {now}, 'cancelled'
    FROM old
    WHERE old.status = 'running'
),
event AS (
    INSERT INTO {job_event} (job_id, event, actor, detail)
    SELECT old.id, 'CANCELLED', :actor, jsonb_strip_nulls(jsonb_build_object('reason', :reason::text)) FROM old
)
SELECT cancelled.id, cancelled.chain_id FROM cancelled;

-- name: retry_tails
-- params: ids, actor, reason
-- Give failed or cancelled tails fresh attempts; those with open blockers go back to waiting for them.
WITH old AS MATERIALIZED (
    SELECT j.id
    FROM {job} j
    WHERE j.id = ANY (:ids::{id_type}[])
      AND j.status IN ('failed', 'cancelled')
    ORDER BY j.id
    FOR NO KEY UPDATE
),
retried AS (
    UPDATE {job} j
    SET status = CASE WHEN j.open_blockers > 0 THEN 'blocked' ELSE 'pending' END::{job_status},
        completed_at = NULL,
        failure_chain_id = NULL,
        limit_at = CASE WHEN j.limit_at IS NOT NULL THEN {now} END,
        scheduled_at = greatest(j.scheduled_at, {now}),
        attempts_forgiven = j.attempt,
        suspect = false,
        losses = 0,
        excuses = 0
    FROM old
    WHERE j.id = old.id
    RETURNING j.id, j.type_name, j.status
),
event AS (
    INSERT INTO {job_event} (job_id, event, actor, detail)
    SELECT retried.id, 'RETRIED', :actor, jsonb_strip_nulls(jsonb_build_object('reason', :reason::text)) FROM retried
)
SELECT retried.id, retried.type_name, retried.status FROM retried;

-- name: missing_blockers
-- params: ids
-- Which of these jobs had a blocker that has been deleted. The others' are locked, as they are when a job is created: somebody
-- may be about to delete one. One that was deleted while this waited for it is not among those that are locked.
WITH held AS MATERIALIZED (
    SELECT b.job_id
    FROM {job_blocker} b
    JOIN {job} r ON r.id = b.blocked_by_chain_id
    WHERE b.job_id = ANY (:ids::{id_type}[])
    ORDER BY r.id
    FOR KEY SHARE OF r
)
SELECT j.id
FROM {job} j
WHERE j.id = ANY (:ids::{id_type}[])
  AND j.blocker_count > (SELECT count(*) FROM held WHERE held.job_id = j.id);

-- name: trigger_jobs
-- params: ids, actor, reason
-- Make pending jobs due now.
WITH triggered AS (
    UPDATE {job} j
    SET scheduled_at = least(j.scheduled_at, {now})
    WHERE j.id = ANY (:ids::{id_type}[])
      AND j.status = 'pending'
    RETURNING j.id, j.type_name
),
event AS (
    INSERT INTO {job_event} (job_id, event, actor, detail)
    SELECT triggered.id, 'TRIGGERED', :actor, jsonb_strip_nulls(jsonb_build_object('reason', :reason::text)) FROM triggered
)
SELECT triggered.id, triggered.type_name FROM triggered;

-- name: add_events
-- params: items
-- Note acts that no other table tells of.
INSERT INTO {job_event} (job_id, event, actor, detail)
SELECT i.job_id, i.event, i.actor, i.detail::jsonb
FROM json_to_recordset(:items::json) AS i (job_id {id_type}, event text, actor text, detail text);

-- name: _all_completed
-- Whether all chains that the job `j` was given as blockers have completed.
j.blocker_count = (
    SELECT count(*)
    FROM {job_blocker} b
    WHERE b.job_id = j.id
      AND (SELECT t.status FROM {job} t WHERE t.chain_id = b.blocked_by_chain_id ORDER BY t.chain_index DESC LIMIT 1) = 'completed'
);

-- name: blocked_page
-- params: type_name, after_at, after_id, limit
-- Blocked jobs of a type in the order they were created, beyond a point, and whether all that they wait for has completed.
SELECT j.id, j.created_at, {_all_completed}
FROM (
    SELECT j.id, j.created_at, j.blocker_count
    FROM {job} j
    WHERE j.type_name = :type_name
      AND j.status = 'blocked'
      AND (:after_id::{id_type} IS NULL OR (j.created_at, j.id) > (:after_at::timestamptz, :after_id::{id_type}))
    ORDER BY j.created_at, j.id
    LIMIT :limit
) j;

-- name: release_stranded
-- params: ids
-- Free those of these jobs that are blocked though all that they wait for has completed. What somebody has locked is left alone.
WITH locked AS MATERIALIZED (
    SELECT j.id
    FROM {ids} i
    JOIN {job} j ON j.id = i.id
    WHERE j.status = 'blocked' AND {_all_completed}
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE {job} j
SET status = 'pending',
    open_blockers = 0,
    scheduled_at = greatest(j.scheduled_at, {now})
FROM locked
WHERE j.id = locked.id
RETURNING j.id, j.type_name;
