-- name: table_sizes
-- params: schema, tables
-- How much room each table and its indexes take; rows as the planner estimates them, and those that wait for a vacuum.
SELECT c.relname, pg_table_size(c.oid), pg_indexes_size(c.oid), greatest(c.reltuples, 0)::bigint, s.n_dead_tup
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
WHERE n.nspname = :schema AND c.relname = ANY (:tables::text[]) AND c.relkind = 'r'
ORDER BY c.relname;

-- name: database_size
-- params:
-- How much room the whole database takes, and whether we may look at the WAL.
SELECT pg_database_size(current_database()), has_function_privilege('pg_ls_waldir()', 'EXECUTE');

-- name: wal_size
-- params:
-- How much room the WAL of the server takes.
SELECT coalesce(sum(w.size), 0)::bigint FROM pg_ls_waldir() w;
