-- For tests of applications: time that passes without waiting for it, as if the database had stood still meanwhile.

-- name: make_jobs_older
-- params: by
-- Move the times of all jobs into the past by so many seconds.
UPDATE {job}
SET created_at = {created_at - :by seconds},
    chain_created_at = {chain_created_at - :by seconds},
    scheduled_at = {scheduled_at - :by seconds},
    completed_at = {completed_at - :by seconds},
    last_attempt_at = {last_attempt_at - :by seconds},
    leased_until = {leased_until - :by seconds},
    heartbeat_at = {heartbeat_at - :by seconds};

-- name: make_attempts_older
-- params: by
-- Move the times of all finished attempts into the past by so many seconds.
UPDATE {job_attempt}
SET claimed_at = {claimed_at - :by seconds},
    started_at = {started_at - :by seconds},
    finished_at = {finished_at - :by seconds},
    retry_at = {retry_at - :by seconds};

-- name: make_events_older
-- params: by
-- Move the times of all events into the past by so many seconds.
UPDATE {job_event}
SET at = {at - :by seconds};

-- name: make_singletons_older
-- params: by
-- Move the times of all housekeeping tasks and schedules into the past by so many seconds.
UPDATE {singleton}
SET leased_until = {leased_until - :by seconds},
    last_run_at = {last_run_at - :by seconds},
    next_run_at = {next_run_at - :by seconds};

-- name: make_pauses_older
-- params: by
-- Move the times of all pauses into the past by so many seconds.
UPDATE {pause}
SET since = {since - :by seconds},
    until = {until - :by seconds};

-- name: make_workers_older
-- params: by
-- Move the times of all workers into the past by so many seconds.
UPDATE {worker}
SET started_at = {started_at - :by seconds},
    last_seen_at = {last_seen_at - :by seconds};

-- name: make_rates_older
-- params: by
-- Move what was done lately into the past by so many seconds.
UPDATE {worker_rate}
SET at = {at - :by seconds};
