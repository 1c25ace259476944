-- The tables of a job queue whose chains are read through their tails.

CREATE TABLE {job} (
    id {id_type} NOT NULL PRIMARY KEY{id_default},
    type_name TEXT NOT NULL,
    chain_id {id_type} NOT NULL REFERENCES {job} (id),
    chain_type_name TEXT NOT NULL,
    chain_index INTEGER NOT NULL DEFAULT 0,
    input TEXT NOT NULL DEFAULT 'null',
    output TEXT,
    status TEXT NOT NULL DEFAULT 'pending'
        CHECK (status IN ('blocked', 'pending', 'running', 'completed', 'failed', 'cancelled')),
    priority INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    scheduled_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    completed_at TEXT,
    completed_by TEXT,
    attempt INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER DEFAULT 25,
    attempts_forgiven INTEGER NOT NULL DEFAULT 0,
    last_attempt_at TEXT,
    last_attempt_error TEXT,
    error_code TEXT,
    leased_by TEXT,
    leased_until TEXT,
    lease_token INTEGER,
    heartbeat_at TEXT,
    deduplication_key TEXT,
    -- No foreign key: every delete would look for rows that point here.
    continued_to {id_type},
    chain_created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    open_blockers INTEGER NOT NULL DEFAULT 0,
    blocker_count INTEGER NOT NULL DEFAULT 0,
    suspect INTEGER NOT NULL DEFAULT 0 CHECK (suspect IN (0, 1)),
    chain_trace_context TEXT,
    trace_context TEXT
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

-- Jobs that are to be tried again, by how often they were: few, so that it costs the others nothing.
CREATE INDEX "{prefix}job_retry_idx" ON {job} (type_name, attempt)
    WHERE status = 'pending' AND attempt > 0;

CREATE INDEX "{prefix}job_error_idx" ON {job} (error_code, type_name)
    WHERE error_code IS NOT NULL;

CREATE TABLE {job_blocker} (
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    blocked_by_chain_id {id_type} NOT NULL REFERENCES {job} (id),
    "index" INTEGER NOT NULL,
    trace_context TEXT,
    PRIMARY KEY (job_id, blocked_by_chain_id)
) WITHOUT ROWID;

CREATE INDEX "{prefix}job_blocker_chain_idx" ON {job_blocker} (blocked_by_chain_id);

CREATE TABLE {job_key} (
    chain_type_name TEXT NOT NULL,
    deduplication_key TEXT NOT NULL,
    PRIMARY KEY (chain_type_name, deduplication_key)
) WITHOUT ROWID;

CREATE TABLE {job_attempt} (
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    attempt INTEGER NOT NULL,
    worker_id TEXT,
    claimed_at TEXT,
    started_at TEXT,
    finished_at TEXT NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('succeeded', 'failed', 'rescheduled', 'lost', 'cancelled')),
    error_code TEXT,
    error_detail TEXT,
    retry_at TEXT,
    PRIMARY KEY (job_id, attempt)
) WITHOUT ROWID;

CREATE TABLE {job_event} (
    id INTEGER PRIMARY KEY,
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    event TEXT NOT NULL,
    actor TEXT,
    detail TEXT NOT NULL DEFAULT (json_object())
);

CREATE INDEX "{prefix}job_event_job_idx" ON {job_event} (job_id, id);

CREATE TABLE {singleton} (
    name TEXT NOT NULL PRIMARY KEY,
    leased_by TEXT,
    leased_until TEXT,
    last_run_at TEXT,
    next_run_at TEXT
);
