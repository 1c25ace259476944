-- Who works, what is paused, and what was done lately.

-- The workers that are there. Each keeps its row with the statement that renews its leases; no index but the key, so that this
-- is a small update.
CREATE TABLE {worker} (
    id TEXT NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    version TEXT NOT NULL,
    started_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    last_seen_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    concurrency INTEGER NOT NULL,
    busy INTEGER NOT NULL DEFAULT 0,
    waiting INTEGER NOT NULL DEFAULT 0,
    zombies INTEGER NOT NULL DEFAULT 0,
    stopping INTEGER NOT NULL DEFAULT 0 CHECK (stopping IN (0, 1)),
    types TEXT NOT NULL DEFAULT '[]'
);

-- What each worker has done of each type: in the last minute (part 0, kept up to date by the worker), and in parts of five minutes.
CREATE TABLE {worker_rate} (
    worker_id TEXT NOT NULL,
    type_name TEXT NOT NULL,
    part INTEGER NOT NULL,
    at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    completed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    PRIMARY KEY (worker_id, type_name, part)
) WITHOUT ROWID;

-- What must not be claimed or ticked: of the kind `type` the jobs of a type, or of all types where the name is empty; of the kind
-- `schedule` the ticks of a schedule.
CREATE TABLE {pause} (
    kind TEXT NOT NULL CHECK (kind IN ('type', 'schedule')),
    name TEXT NOT NULL,
    since TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
    until TEXT,
    reason TEXT,
    actor TEXT,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;
