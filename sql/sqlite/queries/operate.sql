-- name: take_write_lock
-- params: ids
-- Take the write lock before reading on: a write that changes nothing. One writer at a time needs no row locks. Which of the jobs
-- there are.
UPDATE {job}
SET attempt = attempt
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id;

-- name: lock_chains
-- params: ids
-- Take the write lock before reading on, and name every job of these chains.
UPDATE {job}
SET attempt = attempt
WHERE chain_id IN (SELECT value FROM json_each(:ids))
RETURNING id, chain_id;

-- name: cancel_tails
-- params: ids, actor, reason
-- Cancel open tails; a running one ends its attempt as cancelled.
INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, finished_at, outcome)
SELECT j.id, j.attempt, j.leased_by, j.last_attempt_at, {now}, 'cancelled'
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND j.status = 'running';
INSERT INTO {job_event} (job_id, event, actor, detail)
SELECT j.id, 'CANCELLED', :actor, CASE WHEN :reason IS NULL THEN json_object() ELSE json_object('reason', :reason) END
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND j.status IN ('blocked', 'pending', 'running');
UPDATE {job}
SET status = 'cancelled',
    completed_at = {now},
    leased_by = NULL,
    leased_until = NULL,
    lease_token = NULL,
    suspect = 0
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('blocked', 'pending', 'running')
RETURNING id, chain_id;

-- name: retry_tails
-- params: ids, actor, reason
-- Give failed or cancelled tails fresh attempts; those with open blockers go back to waiting for them.
INSERT INTO {job_event} (job_id, event, actor, detail)
SELECT j.id, 'RETRIED', :actor, CASE WHEN :reason IS NULL THEN json_object() ELSE json_object('reason', :reason) END
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND j.status IN ('failed', 'cancelled');
UPDATE {job}
SET status = CASE WHEN open_blockers > 0 THEN 'blocked' ELSE 'pending' END,
    completed_at = NULL,
    failure_chain_id = NULL,
    -- Behind what was started in this very millisecond.
    limit_at = CASE WHEN limit_at IS NOT NULL THEN {now + 0.001 seconds} END,
    scheduled_at = max(scheduled_at, {now}),
    attempts_forgiven = attempt,
    suspect = 0,
    losses = 0,
    excuses = 0
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('failed', 'cancelled')
RETURNING id, type_name, status;

-- name: missing_blockers
-- params: ids
-- Which of these jobs had a blocker that has been deleted.
SELECT j.id
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids))
  AND j.blocker_count > (SELECT count(*) FROM {job_blocker} b WHERE b.job_id = j.id);

-- name: trigger_jobs
-- params: ids, actor, reason
-- Make pending jobs due now.
INSERT INTO {job_event} (job_id, event, actor, detail)
SELECT j.id, 'TRIGGERED', :actor, CASE WHEN :reason IS NULL THEN json_object() ELSE json_object('reason', :reason) END
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND j.status = 'pending';
UPDATE {job}
SET scheduled_at = min(scheduled_at, {now})
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'pending'
RETURNING id, type_name;

-- name: add_events
-- params: items
-- Note acts that no other table tells of.
INSERT INTO {job_event} (job_id, event, actor, detail)
SELECT
    json_extract(value, '$.job_id'),
    json_extract(value, '$.event'),
    json_extract(value, '$.actor'),
    json_extract(value, '$.detail')
FROM json_each(:items);

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
      AND (j.created_at, j.id) > (coalesce(:after_at, ''), coalesce(:after_id, ''))
    ORDER BY j.created_at, j.id
    LIMIT :limit
) j;

-- name: release_stranded
-- params: ids
-- Free those of these jobs that are blocked though all that they wait for has completed.
UPDATE {job} AS j
SET status = 'pending',
    open_blockers = 0,
    scheduled_at = max(j.scheduled_at, {now})
WHERE j.id IN (SELECT value FROM json_each(:ids))
  AND j.status = 'blocked'
  AND {_all_completed}
RETURNING id, type_name;
