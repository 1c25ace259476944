-- name: try_lock_migrations
-- One migrator at a time for each schema and prefix, until its transaction ends: whether it is us. It comes before everything
-- else, since CREATE ... IF NOT EXISTS can fail when two do it at once.
SELECT pg_try_advisory_xact_lock(hashtextextended('queuert migrations of {schema}.{prefix}', 0));

-- name: migration_table_exists
-- Whether anything was ever migrated here.
SELECT count(*)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = '{schema}' AND c.relname = '{prefix}migration';

-- name: create_migration_schema
-- The schema, if it is not there: asking first, since IF NOT EXISTS wants the right to create even then.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = '{schema}') THEN
        CREATE SCHEMA "{schema}";
    END IF;
END
$$;

-- name: create_migration_table
-- The table that tells which migrations are applied.
CREATE TABLE IF NOT EXISTS {migration} (
    name text NOT NULL PRIMARY KEY,
    applied_at timestamptz NOT NULL
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

-- name: half_built_index
-- params: schema, name
-- Whether the building of an index was broken off.
SELECT count(*)
FROM pg_catalog.pg_index AS i
JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = :schema AND c.relname = :name AND NOT i.indisvalid;

-- name: function_comments
-- params: schema, names
-- What is noted of functions, by their names.
SELECT p.proname, pg_catalog.obj_description(p.oid, 'pg_proc')
FROM pg_catalog.pg_proc AS p
JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = :schema AND p.proname = ANY (:names::text[]);
