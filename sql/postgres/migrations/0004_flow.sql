-- What is started when a job fails for good, and until when a job waits for its blockers.
ALTER TABLE {job}
    ADD COLUMN IF NOT EXISTS on_failed text,
    ADD COLUMN IF NOT EXISTS failure_chain_id {id_type},
    ADD COLUMN IF NOT EXISTS blockers_until text NOT NULL DEFAULT 'completed';

-- Failed jobs whose chain was not started, since a worker of the release before this one has written the failure.
CREATE INDEX CONCURRENTLY IF NOT EXISTS "{prefix}job_failure_idx" ON {job} (id)
    WHERE status = 'failed' AND on_failed IS NOT NULL AND failure_chain_id IS NULL;

-- Jobs that wait until their blockers have closed, however these end: workers of the release before this one do not free them.
CREATE INDEX CONCURRENTLY IF NOT EXISTS "{prefix}job_join_idx" ON {job} (id)
    WHERE status = 'blocked' AND blockers_until = 'closed';
