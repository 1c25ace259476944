-- The open chain of a deduplication key, however many closed ones the key has.
CREATE INDEX CONCURRENTLY IF NOT EXISTS "{prefix}job_open_key_idx" ON {job} (chain_type_name, deduplication_key, chain_created_at)
    WHERE deduplication_key IS NOT NULL AND continued_to IS NULL AND status IN ('blocked', 'pending', 'running');
