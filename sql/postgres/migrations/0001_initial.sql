-- The tables of a job queue whose chains are read through their tails.

CREATE TYPE {job_status} AS ENUM ('blocked', 'pending', 'running', 'completed', 'failed', 'cancelled');

CREATE TABLE {job} (
    id {id_type} PRIMARY KEY{id_default},
    type_name text NOT NULL,
    chain_id {id_type} NOT NULL REFERENCES {job} (id),
    chain_type_name text NOT NULL,
    chain_index integer NOT NULL DEFAULT 0,
    input jsonb NOT NULL DEFAULT 'null',
    output jsonb,
    status {job_status} NOT NULL DEFAULT 'pending',
    priority integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    scheduled_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    completed_at timestamptz,
    completed_by text,
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer DEFAULT 25,
    attempts_forgiven integer NOT NULL DEFAULT 0,
    last_attempt_at timestamptz,
    last_attempt_error text,
    error_code text,
    leased_by text,
    leased_until timestamptz,
    lease_token bigint,
    heartbeat_at timestamptz,
    deduplication_key text,
    -- No foreign key: every delete would look for rows that point here.
    continued_to {id_type},
    chain_created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    open_blockers integer NOT NULL DEFAULT 0,
    blocker_count integer NOT NULL DEFAULT 0,
    suspect boolean NOT NULL DEFAULT false,
    chain_trace_context text,
    trace_context text
);

-- The jobs of a chain in order; its last one is the tail. It also keeps a chain from ever having two tails.
CREATE UNIQUE INDEX "{prefix}job_chain_idx" ON {job} (chain_id, chain_index);

-- What a claim reads. Suspects (their last worker died) stand apart, so that they hold nobody up.
CREATE INDEX "{prefix}job_claim_idx" ON {job} (type_name, suspect, priority DESC, scheduled_at)
    WHERE status = 'pending';

CREATE INDEX "{prefix}job_lease_idx" ON {job} (leased_until)
    WHERE status = 'running';

-- Chains by type, state and age.
CREATE INDEX "{prefix}job_tail_idx" ON {job} (chain_type_name, status, chain_created_at, chain_id)
    WHERE continued_to IS NULL;

-- Jobs by type, state and age; also counts them.
CREATE INDEX "{prefix}job_listing_idx" ON {job} (type_name, status, created_at, id);

CREATE INDEX "{prefix}job_deduplication_idx" ON {job} (chain_type_name, deduplication_key, chain_created_at)
    WHERE deduplication_key IS NOT NULL AND continued_to IS NULL;

CREATE INDEX "{prefix}job_error_idx" ON {job} (error_code, type_name)
    WHERE error_code IS NOT NULL;

ALTER TABLE {job} SET (
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE {job_blocker} (
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    blocked_by_chain_id {id_type} NOT NULL REFERENCES {job} (id),
    index integer NOT NULL,
    trace_context text,
    PRIMARY KEY (job_id, blocked_by_chain_id)
);

CREATE INDEX "{prefix}job_blocker_chain_idx" ON {job_blocker} (blocked_by_chain_id);

ALTER TABLE {job_blocker} SET (autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {job_key} (
    chain_type_name text NOT NULL,
    deduplication_key text NOT NULL,
    PRIMARY KEY (chain_type_name, deduplication_key)
);

CREATE TABLE {job_attempt} (
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    attempt integer NOT NULL,
    worker_id text,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('succeeded', 'failed', 'rescheduled', 'lost', 'cancelled')),
    error_code text,
    error_detail text,
    retry_at timestamptz,
    PRIMARY KEY (job_id, attempt)
);

CREATE TABLE {job_event} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event text NOT NULL,
    actor text,
    detail jsonb NOT NULL DEFAULT jsonb_build_object()
);

CREATE INDEX "{prefix}job_event_job_idx" ON {job_event} (job_id, id);

CREATE TABLE {singleton} (
    name text PRIMARY KEY,
    leased_by text,
    leased_until timestamptz,
    last_run_at timestamptz,
    next_run_at timestamptz
);
