-- name: clock
-- params:
-- The database's clock.
SELECT {now};

-- name: renew_leases
-- params: worker, items
-- Extend the leases this worker still holds; a row that is no longer its own is not returned. How far a job is comes along where
-- that is news.
UPDATE {job} AS j
SET leased_until = {now + item.lease seconds},
    heartbeat_at = {now},
    progress_fraction = coalesce(item.fraction, j.progress_fraction),
    progress_message = CASE WHEN item.fraction IS NULL THEN j.progress_message ELSE item.message END
FROM (
    SELECT
        :worker AS worker,
        json_extract(value, '$.id') AS id,
        json_extract(value, '$.token') AS token,
        json_extract(value, '$.lease') AS lease,
        json_extract(value, '$.fraction') AS fraction,
        json_extract(value, '$.message') AS message
    FROM json_each(:items)
) item
WHERE j.id = item.id AND {fence}
RETURNING id;

-- name: lease_states
-- params: ids
-- Who holds these jobs now, and in what state they are.
SELECT j.id, j.status, j.leased_by, j.lease_token
FROM json_each(:ids) i
CROSS JOIN {job} j ON j.id = i.value;

-- name: lock_expired
-- params: before, limit
-- Leases that had ended by a time, oldest first; a write that changes nothing, to hold the write lock from here on.
UPDATE {job}
SET attempt = attempt
WHERE id IN (
    SELECT j.id
    FROM {job} j
    WHERE j.status = 'running' AND j.leased_until < :before
    ORDER BY j.leased_until
    LIMIT :limit
)
RETURNING {job_columns};

-- name: end_attempts
-- params: items
-- End attempts that did not complete: back to pending, or failed for good. Only where the lease is still the one named.
UPDATE {job} AS j
SET status = item.status,
    scheduled_at = CASE
        WHEN item.status = 'pending' THEN max({now}, coalesce(item.at, {now + item.after seconds}, {now}))
        ELSE j.scheduled_at
    END,
    completed_at = CASE WHEN item.status = 'failed' THEN {now} END,
    failure_chain_id = item.failure_chain_id,
    attempts_forgiven = j.attempts_forgiven + item.forgive,
    leased_by = NULL,
    leased_until = NULL,
    lease_token = NULL,
    error_code = item.code,
    last_attempt_error = item.error,
    suspect = coalesce(item.suspect, item.status = 'pending' AND item.outcome = 'lost'),
    losses = coalesce(item.losses, 0),
    excuses = coalesce(item.excuses, 0),
    progress_fraction = coalesce(item.fraction, j.progress_fraction),
    progress_message = CASE WHEN item.fraction IS NULL THEN j.progress_message ELSE item.message END
FROM (
    SELECT
        json_extract(value, '$.id') AS id,
        json_extract(value, '$.worker') AS worker,
        json_extract(value, '$.token') AS token,
        json_extract(value, '$.status') AS status,
        json_extract(value, '$.outcome') AS outcome,
        json_extract(value, '$.code') AS code,
        json_extract(value, '$.error') AS error,
        json_extract(value, '$.at') AS at,
        json_extract(value, '$.after') AS after,
        json_extract(value, '$.forgive') AS forgive,
        json_extract(value, '$.failure_chain_id') AS failure_chain_id,
        json_extract(value, '$.suspect') AS suspect,
        json_extract(value, '$.losses') AS losses,
        json_extract(value, '$.excuses') AS excuses,
        json_extract(value, '$.fraction') AS fraction,
        json_extract(value, '$.message') AS message
    FROM json_each(:items)
) item
WHERE j.id = item.id AND {fence}
RETURNING id, chain_id, type_name, status, scheduled_at, {now};

-- name: insert_ended_attempts
-- params: items, ids, now
-- Write the attempts that end_attempts has ended: those of the items whose jobs are named by `ids`.
INSERT INTO {job_attempt} (
    job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome, error_code, error_detail, retry_at
)
SELECT
    j.id, j.attempt, item.worker, j.last_attempt_at,
    CASE WHEN item.waited IS NOT NULL THEN min({j.last_attempt_at + item.waited seconds}, :now) END,
    :now, item.outcome, item.code, item.detail,
    CASE WHEN j.status = 'pending' THEN j.scheduled_at END
FROM (
    SELECT
        json_extract(value, '$.id') AS id,
        json_extract(value, '$.worker') AS worker,
        json_extract(value, '$.outcome') AS outcome,
        json_extract(value, '$.code') AS code,
        json_extract(value, '$.detail') AS detail,
        json_extract(value, '$.waited') AS waited
    FROM json_each(:items)
) item
CROSS JOIN {job} j ON j.id = item.id
WHERE item.id IN (SELECT value FROM json_each(:ids));

-- name: unstarted_failures
-- params: limit
-- Jobs that failed for good and whose chain for that was not started.
SELECT {j_columns}
FROM {job} j
WHERE j.status = 'failed' AND j.on_failed IS NOT NULL AND j.failure_chain_id IS NULL
ORDER BY j.id
LIMIT :limit;

-- name: note_failures
-- params: items
-- Note which chains are started for jobs that failed for good; those for which nobody else did so before.
UPDATE {job}
SET failure_chain_id = item.failure_chain_id
FROM (
    SELECT json_extract(value, '$.id') AS id, json_extract(value, '$.failure_chain_id') AS failure_chain_id
    FROM json_each(:items)
) item
WHERE {job}.id = item.id AND status = 'failed' AND {job}.failure_chain_id IS NULL
RETURNING id;
