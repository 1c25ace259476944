-- For tests of applications: time that passes without waiting for it.

-- name: make_older
-- params: by
-- Move every time in the tables into the past by so many seconds, as if the database had stood still for them.
WITH jobs AS (
    UPDATE {job}
    SET
        created_at = created_at - make_interval(secs => :by),
        chain_created_at = chain_created_at - make_interval(secs => :by),
        scheduled_at = scheduled_at - make_interval(secs => :by),
        completed_at = completed_at - make_interval(secs => :by),
        last_attempt_at = last_attempt_at - make_interval(secs => :by),
        leased_until = leased_until - make_interval(secs => :by),
        heartbeat_at = heartbeat_at - make_interval(secs => :by)
),
job_attempts AS (
    UPDATE {job_attempt}
    SET
        claimed_at = claimed_at - make_interval(secs => :by),
        started_at = started_at - make_interval(secs => :by),
        finished_at = finished_at - make_interval(secs => :by),
        retry_at = retry_at - make_interval(secs => :by)
),
job_events AS (
    UPDATE {job_event}
    SET
        at = at - make_interval(secs => :by)
)
UPDATE {singleton}
SET
    leased_until = leased_until - make_interval(secs => :by),
    last_run_at = last_run_at - make_interval(secs => :by),
    next_run_at = next_run_at - make_interval(secs => :by);
