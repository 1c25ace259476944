-- Limits: how many jobs of a key run at a time, how often they start, in which order.
ALTER TABLE {job}
    ADD COLUMN IF NOT EXISTS limit_name text,
    ADD COLUMN IF NOT EXISTS limit_key text,
    ADD COLUMN IF NOT EXISTS limit_at timestamptz;

-- Numbers that an operator has set: they win over those in the code.
CREATE TABLE IF NOT EXISTS {limit} (
    name text PRIMARY KEY,
    concurrency integer,
    rate double precision,
    per double precision,
    burst integer,
    set_by text NOT NULL,
    set_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- The row that a claim locks before it counts what runs of a key. It says when the allowance of the rate is used up to, how far
-- apart starts are, and until when nothing of the key may start.
CREATE TABLE IF NOT EXISTS {limit_key} (
    limit_name text NOT NULL,
    limit_key text NOT NULL,
    used_until timestamptz,
    spacing double precision,
    held_until timestamptz,
    PRIMARY KEY (limit_name, limit_key)
);

-- The keys that have jobs waiting, one after the other, however many jobs each has.
CREATE INDEX CONCURRENTLY IF NOT EXISTS "{prefix}job_limit_idx"
    ON {job} (type_name, suspect, limit_name, limit_key, priority DESC, scheduled_at)
    WHERE status = 'pending' AND limit_name IS NOT NULL;

-- What runs of a key.
CREATE INDEX CONCURRENTLY IF NOT EXISTS "{prefix}job_limit_running_idx" ON {job} (limit_name, limit_key)
    WHERE status = 'running' AND limit_name IS NOT NULL;

-- The first open job of a key whose jobs run in order.
CREATE INDEX CONCURRENTLY IF NOT EXISTS "{prefix}job_limit_order_idx" ON {job} (limit_name, limit_key, limit_at, id)
    WHERE limit_at IS NOT NULL AND status IN ('blocked', 'pending', 'running');
