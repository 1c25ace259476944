-- For tests of applications: time that passes without waiting for it.

-- name: make_older
-- params: by
-- Move every time in the tables into the past by so many seconds, as if the database had stood still for them.
UPDATE {job}
SET
    created_at = strftime('%Y-%m-%dT%H:%M:%f', substr(created_at, 1, 23), printf('-%.3f seconds', :by)) || substr(created_at, 24),
    chain_created_at = strftime('%Y-%m-%dT%H:%M:%f', substr(chain_created_at, 1, 23), printf('-%.3f seconds', :by)) || substr(chain_created_at, 24),
    scheduled_at = strftime('%Y-%m-%dT%H:%M:%f', substr(scheduled_at, 1, 23), printf('-%.3f seconds', :by)) || substr(scheduled_at, 24),
    completed_at = strftime('%Y-%m-%dT%H:%M:%f', substr(completed_at, 1, 23), printf('-%.3f seconds', :by)) || substr(completed_at, 24),
    last_attempt_at = strftime('%Y-%m-%dT%H:%M:%f', substr(last_attempt_at, 1, 23), printf('-%.3f seconds', :by)) || substr(last_attempt_at, 24),
    leased_until = strftime('%Y-%m-%dT%H:%M:%f', substr(leased_until, 1, 23), printf('-%.3f seconds', :by)) || substr(leased_until, 24),
    heartbeat_at = strftime('%Y-%m-%dT%H:%M:%f', substr(heartbeat_at, 1, 23), printf('-%.3f seconds', :by)) || substr(heartbeat_at, 24);

UPDATE {job_attempt}
SET
    claimed_at = strftime('%Y-%m-%dT%H:%M:%f', substr(claimed_at, 1, 23), printf('-%.3f seconds', :by)) || substr(claimed_at, 24),
    started_at = strftime('%Y-%m-%dT%H:%M:%f', substr(started_at, 1, 23), printf('-%.3f seconds', :by)) || substr(started_at, 24),
    finished_at = strftime('%Y-%m-%dT%H:%M:%f', substr(finished_at, 1, 23), printf('-%.3f seconds', :by)) || substr(finished_at, 24),
    retry_at = strftime('%Y-%m-%dT%H:%M:%f', substr(retry_at, 1, 23), printf('-%.3f seconds', :by)) || substr(retry_at, 24);

UPDATE {job_event}
SET
    at = strftime('%Y-%m-%dT%H:%M:%f', substr(at, 1, 23), printf('-%.3f seconds', :by)) || substr(at, 24);

UPDATE {singleton}
SET
    leased_until = strftime('%Y-%m-%dT%H:%M:%f', substr(leased_until, 1, 23), printf('-%.3f seconds', :by)) || substr(leased_until, 24),
    last_run_at = strftime('%Y-%m-%dT%H:%M:%f', substr(last_run_at, 1, 23), printf('-%.3f seconds', :by)) || substr(last_run_at, 24),
    next_run_at = strftime('%Y-%m-%dT%H:%M:%f', substr(next_run_at, 1, 23), printf('-%.3f seconds', :by)) || substr(next_run_at, 24);
