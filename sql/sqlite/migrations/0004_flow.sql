-- What is started when a job fails for good, and until when a job waits for its blockers.
ALTER TABLE {job} ADD COLUMN on_failed TEXT;
ALTER TABLE {job} ADD COLUMN failure_chain_id {id_type};
ALTER TABLE {job} ADD COLUMN blockers_until TEXT NOT NULL DEFAULT 'completed';

-- Failed jobs whose chain was not started, since a worker of the release before this one has written the failure.
CREATE INDEX "{prefix}job_failure_idx" ON {job} (id)
    WHERE status = 'failed' AND on_failed IS NOT NULL AND failure_chain_id IS NULL;

-- Jobs that wait until their blockers have closed, however these end: workers of the release before this one do not free them.
CREATE INDEX "{prefix}job_join_idx" ON {job} (id)
    WHERE status = 'blocked' AND blockers_until = 'closed';
