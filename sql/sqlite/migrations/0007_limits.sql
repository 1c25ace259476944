-- Limits: how many jobs of a key run at a time, how often they start, in which order.
ALTER TABLE {job} ADD COLUMN limit_name TEXT;
ALTER TABLE {job} ADD COLUMN limit_key TEXT;
ALTER TABLE {job} ADD COLUMN limit_at TEXT;

-- Numbers that an operator has set: they win over those in the code.
CREATE TABLE {limit} (
    name TEXT NOT NULL PRIMARY KEY,
    concurrency INTEGER,
    rate REAL,
    per REAL,
    burst INTEGER,
    set_by TEXT NOT NULL,
    set_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z')
);

-- When the allowance of a key's rate is used up to, how far apart its starts are, and until when nothing of it may start.
CREATE TABLE {limit_key} (
    limit_name TEXT NOT NULL,
    limit_key TEXT NOT NULL,
    used_until TEXT,
    spacing REAL,
    held_until TEXT,
    PRIMARY KEY (limit_name, limit_key)
) WITHOUT ROWID;

-- The keys that have jobs waiting, one after the other, however many jobs each has.
CREATE INDEX "{prefix}job_limit_idx" ON {job} (type_name, suspect, limit_name, limit_key, priority DESC, scheduled_at)
    WHERE status = 'pending' AND limit_name IS NOT NULL;

-- What runs of a key.
CREATE INDEX "{prefix}job_limit_running_idx" ON {job} (limit_name, limit_key)
    WHERE status = 'running' AND limit_name IS NOT NULL;

-- The first open job of a key whose jobs run in order.
CREATE INDEX "{prefix}job_limit_order_idx" ON {job} (limit_name, limit_key, limit_at, id)
    WHERE limit_at IS NOT NULL AND status IN ('blocked', 'pending', 'running');
