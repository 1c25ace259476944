-- Who works, what is paused, and what was done lately.

-- The workers that are there. Each keeps its row with the statement that renews its leases; no index but the key, so that this
-- is a small update.
CREATE TABLE {worker} (
    id text PRIMARY KEY,
    name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    version text NOT NULL,
    started_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    last_seen_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    concurrency integer NOT NULL,
    busy integer NOT NULL DEFAULT 0,
    waiting integer NOT NULL DEFAULT 0,
    zombies integer NOT NULL DEFAULT 0,
    stopping boolean NOT NULL DEFAULT false,
    types jsonb NOT NULL DEFAULT '[]'
);

ALTER TABLE {worker} SET (fillfactor = 50);

-- What each worker has done of each type: in the last minute (part 0, kept up to date by the worker), and in parts of five minutes.
CREATE TABLE {worker_rate} (
    worker_id text NOT NULL,
    type_name text NOT NULL,
    part integer NOT NULL,
    at timestamptz NOT NULL DEFAULT statement_timestamp(),
    completed integer NOT NULL,
    failed integer NOT NULL,
    PRIMARY KEY (worker_id, type_name, part)
);

ALTER TABLE {worker_rate} SET (fillfactor = 50);

-- What must not be claimed or ticked: of the kind `type` the jobs of a type, or of all types where the name is empty; of the kind
-- `schedule` the ticks of a schedule.
CREATE TABLE {pause} (
    kind text NOT NULL CHECK (kind IN ('type', 'schedule')),
    name text NOT NULL,
    since timestamptz NOT NULL DEFAULT statement_timestamp(),
    until timestamptz,
    reason text,
    actor text,
    PRIMARY KEY (kind, name)
);
