-- name: migration_table_exists
-- Whether anything was ever migrated here.
SELECT count(*)
FROM sqlite_master
WHERE type = 'table' AND name = '{prefix}migration';

-- name: create_migration_table
-- The table that tells which migrations are applied.
CREATE TABLE IF NOT EXISTS {migration} (
    name TEXT NOT NULL PRIMARY KEY,
    applied_at TEXT NOT NULL
);

-- name: list_migrations
-- The migrations that are applied, in order.
SELECT name, applied_at
FROM {migration}
ORDER BY name;

-- name: record_migration
-- params: name
-- Note a migration as applied.
INSERT INTO {migration} (name, applied_at)
VALUES (:name, {now});
