-- name: clock
-- params:
-- The database's clock.
SELECT {now};

-- name: _held
-- The leases among the items that a worker still holds, locked; those that somebody else has locked are left out.
fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
),
item AS MATERIALIZED (
    SELECT :worker::text AS worker, i.*
    FROM (
        SELECT *
        FROM json_to_recordset(:items::json) AS i (
            id {id_type}, token bigint, lease double precision, fraction double precision, message text
        )
        {few}
    ) i
    {few}
),
held AS MATERIALIZED (
    SELECT j.id, item.lease, item.fraction, item.message
    FROM item
    JOIN {job} j ON j.id = item.id
    WHERE {fence}
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
);

-- name: _renew
-- Extend the leases that are held. How far a job is comes along where that is news.
UPDATE {job} j
SET leased_until = {now + held.lease seconds},
    heartbeat_at = {now},
    progress_fraction = coalesce(held.fraction, j.progress_fraction),
    progress_message = CASE WHEN held.fraction IS NULL THEN j.progress_message ELSE held.message END
FROM held
WHERE j.id = held.id AND (SELECT count(*) FROM fast) > 0
RETURNING j.id;

-- name: renew_leases
-- params: worker, items
-- Extend the leases this worker still holds; a row that is locked or no longer its own is not returned.
WITH {_held}
{_renew};

-- name: renew_and_sign
-- params: worker, items, sign, rates
-- What renew_leases does, and beside it the worker's sign of life and what it has done lately, in one round trip.
WITH {_held},
renewed AS (
    {_renew}
),
seen AS (
    INSERT INTO {worker} (id, name, host, pid, version, concurrency, busy, waiting, zombies, stopping, types)
    SELECT
        :worker::text, s.name, s.host, s.pid, s.version, s.concurrency, s.busy, s.waiting, s.zombies, s.stopping, s.types
    FROM json_to_record(:sign::json) AS s (
        name text, host text, pid integer, version text, concurrency integer, busy integer, waiting integer, zombies integer,
        stopping boolean, types jsonb
    )
    ON CONFLICT (id) DO UPDATE
        SET last_seen_at = {now},
            busy = excluded.busy,
            waiting = excluded.waiting,
            zombies = excluded.zombies,
            stopping = excluded.stopping,
            types = excluded.types
),
rated AS (
    INSERT INTO {worker_rate} (worker_id, type_name, part, completed, failed)
    SELECT :worker::text, r.type_name, r.part, r.completed, r.failed
    FROM json_to_recordset(:rates::json) AS r (type_name text, part integer, completed integer, failed integer)
    ON CONFLICT (worker_id, type_name, part) DO UPDATE
        SET at = {now},
            completed = excluded.completed,
            failed = excluded.failed
)
SELECT renewed.id FROM renewed;

-- name: lease_states
-- params: ids
-- Who holds these jobs now, and in what state they are.
SELECT j.id, j.status, j.leased_by, j.lease_token
FROM {ids} i
JOIN {job} j ON j.id = i.id;

-- name: lock_expired
-- params: before, limit
-- Leases that had ended by a time, oldest first. One whose row is locked is being renewed or completed: left alone.
SELECT {j_columns}
FROM {job} j
WHERE j.status = 'running' AND j.leased_until < :before::timestamptz
ORDER BY j.leased_until
LIMIT :limit
FOR NO KEY UPDATE SKIP LOCKED;

-- name: end_attempts
-- params: items
-- End attempts that did not complete: back to pending, or failed for good. Only where the lease is still the one named.
WITH item AS MATERIALIZED (
    SELECT *
    FROM (
        SELECT *
        FROM json_to_recordset(:items::json) AS i (
            id {id_type}, worker text, token bigint, status text, outcome text, code text, detail text, error text,
            at timestamptz, after double precision, forgive integer, waited double precision, failure_chain_id {id_type},
            suspect boolean, losses integer, excuses integer, fraction double precision, message text
        )
        {few}
    ) i
    {few}
),
locked AS MATERIALIZED (
    SELECT j.id
    FROM item
    JOIN {job} j ON j.id = item.id
    WHERE {fence}
    ORDER BY j.id
    FOR NO KEY UPDATE OF j
),
ended AS (
    UPDATE {job} j
    SET status = item.status::{job_status},
        scheduled_at = CASE
            WHEN item.status = 'pending' THEN greatest({now}, coalesce(item.at, {now + item.after seconds}))
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
    FROM item
    JOIN locked ON locked.id = item.id
    WHERE j.id = item.id
    RETURNING
        j.id, j.chain_id, j.type_name, j.status, j.scheduled_at, j.attempt, j.last_attempt_at,
        item.worker, item.outcome, item.code, item.detail, item.waited
),
attempt AS (
    INSERT INTO {job_attempt} (
        job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome, error_code, error_detail, retry_at
    )
    SELECT
        ended.id, ended.attempt, ended.worker, ended.last_attempt_at,
        CASE WHEN ended.waited IS NOT NULL THEN least({ended.last_attempt_at + ended.waited seconds}, {now}) END,
        {now}, ended.outcome, ended.code, ended.detail,
        CASE WHEN ended.status = 'pending' THEN ended.scheduled_at END
    FROM ended
)
SELECT ended.id, ended.chain_id, ended.type_name, ended.status, ended.scheduled_at FROM ended;

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
UPDATE {job} j
SET failure_chain_id = item.failure_chain_id
FROM (
    SELECT * FROM json_to_recordset(:items::json) AS i (id {id_type}, failure_chain_id {id_type}) ORDER BY i.id {few}
) item
WHERE j.id = item.id AND j.status = 'failed' AND j.failure_chain_id IS NULL
RETURNING j.id;
