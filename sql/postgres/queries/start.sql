-- name: start_chain
-- params: id, type_name, input, priority, max_attempts, trace, channel
-- Insert the first job of a new chain that is due now and waits for nothing; when it was created. With a channel its listeners
-- are told of the type when the transaction commits. What has more to it goes by start_chains, in a fifth of the time more.
INSERT INTO {job} (
    id, type_name, chain_id, chain_type_name, input, priority, max_attempts, chain_trace_context, trace_context
)
VALUES (
    :id::{id_type}, :type_name, :id::{id_type}, :type_name, :input::jsonb, :priority, :max_attempts, :trace, :trace
)
RETURNING created_at, CASE WHEN :channel::text IS NOT NULL THEN pg_notify(:channel::text, type_name) END::text;

-- name: _insert_chains
-- The first jobs of many new chains. One with blockers starts as blocked, with all of them counted as open.
INSERT INTO {job} (
    id, type_name, chain_id, chain_type_name, input, status, priority, created_at, scheduled_at, max_attempts,
    deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context, trace_context,
    blockers_until, on_failed, limit_name, limit_key, limit_at
)
SELECT
    i.id, i.type_name, i.id, i.type_name, i.input::jsonb,
    CASE WHEN i.blockers > 0 THEN 'blocked' ELSE 'pending' END::{job_status},
    coalesce(i.priority, 0), {now}, greatest({now}, coalesce(i.at, {now + i.after seconds})),
    i.max_attempts, i.key, {now}, coalesce(i.blockers, 0), coalesce(i.blockers, 0), i.trace, i.trace,
    coalesce(i.until, 'completed'), i.on_failed, i.limit_name, i.limit_key, CASE WHEN i.limit_strict THEN {now} END
FROM json_to_recordset(:items::json) AS i (
    id {id_type}, type_name text, input text, priority integer, at timestamptz, after double precision,
    max_attempts integer, key text, blockers integer, trace text, until text, on_failed text,
    limit_name text, limit_key text, limit_strict boolean
);

-- name: start_chains
-- params: items, types, channel
-- Insert the first jobs of many new chains; when they were created. `types` are the names to tell on the channel, if one is
-- given.
WITH made AS ({_insert_chains}),
told AS MATERIALIZED (
    SELECT pg_notify(:channel::text, type.name)
    FROM unnest(:types::text[]) AS type (name)
    WHERE :channel::text IS NOT NULL
)
SELECT {now}, (SELECT count(*) FROM told);

-- name: start_named_chains
-- params: items, types, channel
-- Insert the first jobs of new chains whose ids the caller has chosen; those that were free, and when they were created. To look
-- for a conflict takes a quarter of the time more, so start_chains does not. Listeners are told even where one was taken.
WITH made AS ({_insert_chains} ON CONFLICT (id) DO NOTHING RETURNING id),
told AS MATERIALIZED (
    SELECT pg_notify(:channel::text, type.name)
    FROM unnest(:types::text[]) AS type (name)
    WHERE :channel::text IS NOT NULL
)
SELECT {now}, (SELECT count(*) FROM told), made.id
FROM (VALUES (1)) one
LEFT JOIN made ON true;

-- name: touch_keys
-- params: items
-- Lock the rows of deduplication keys, in order; whoever comes second waits here for the first one's commit or rollback.
INSERT INTO {job_key} (chain_type_name, deduplication_key)
SELECT i.type_name, i.key
FROM json_to_recordset(:items::json) AS i (type_name text, key text)
ORDER BY i.type_name, i.key
ON CONFLICT (chain_type_name, deduplication_key) DO UPDATE
    SET deduplication_key = excluded.deduplication_key;

-- name: find_duplicates
-- params: items
-- For each wanted key the newest chain that stands in its way. Runs after touch_keys, to see what the wait was for.
-- A branch for each scope, so that each has an index of its own: a key may have any number of closed chains.
SELECT i.n, d.chain_id
FROM json_to_recordset(:items::json) AS i (
    n integer, type_name text, key text, scope text, since double precision, exclude json
)
CROSS JOIN LATERAL (
    (
        SELECT t.chain_id
        FROM {job} t
        WHERE i.scope = 'any'
          AND t.chain_type_name = i.type_name
          AND t.deduplication_key = i.key
          AND t.continued_to IS NULL
          AND (i.since IS NULL OR t.chain_created_at > {now - i.since seconds})
          AND t.chain_id NOT IN (SELECT e.id::{id_type} FROM json_array_elements_text(i.exclude) AS e (id))
        ORDER BY t.chain_created_at DESC
        LIMIT 1
    )
    UNION ALL
    (
        SELECT t.chain_id
        FROM {job} t
        WHERE i.scope <> 'any'
          AND t.chain_type_name = i.type_name
          AND t.deduplication_key = i.key
          AND t.continued_to IS NULL
          AND t.status IN ('blocked', 'pending', 'running')
          AND (i.since IS NULL OR t.chain_created_at > {now - i.since seconds})
          AND t.chain_id NOT IN (SELECT e.id::{id_type} FROM json_array_elements_text(i.exclude) AS e (id))
        ORDER BY t.chain_created_at DESC
        LIMIT 1
    )
) d;

-- name: insert_blockers
-- params: items
-- Note which chains a job waits for. The foreign key locks their first jobs against a close at this very moment.
INSERT INTO {job_blocker} (job_id, blocked_by_chain_id, index, trace_context)
SELECT i.job_id, i.chain_id, i.index, i.trace
FROM json_to_recordset(:items::json) AS i (job_id {id_type}, chain_id {id_type}, index integer, trace text)
ORDER BY i.chain_id, i.job_id;

-- name: settle_blockers
-- params: ids
-- Count the blockers that are still open, after insert_blockers has locked them, and free the jobs that have none.
-- Above READ COMMITTED the snapshot may be older than a close: locking the tails then raises instead of stranding the job.
WITH tail AS (
    SELECT b.job_id, w.blockers_until AS until, t.id, t.status
    FROM unnest(:ids::{id_type}[]) AS new (id)
    JOIN {job} w ON w.id = new.id
    JOIN {job_blocker} b ON b.job_id = new.id
    CROSS JOIN LATERAL (
        SELECT t.id, t.status FROM {job} t WHERE t.chain_id = b.blocked_by_chain_id ORDER BY t.chain_index DESC LIMIT 1
    ) t
),
guard AS (
    SELECT t.id
    FROM {job} t
    WHERE current_setting('transaction_isolation') <> 'read committed'
      AND t.id IN (SELECT tail.id FROM tail)
    FOR SHARE
),
count AS (
    SELECT tail.job_id, count(*) FILTER (
        WHERE tail.status <> 'completed' AND (tail.until = 'completed' OR tail.status NOT IN ('failed', 'cancelled'))
    ) AS open
    FROM tail
    GROUP BY tail.job_id
)
UPDATE {job} j
SET open_blockers = count.open,
    status = CASE WHEN count.open > 0 THEN 'blocked' ELSE 'pending' END::{job_status}
FROM count
WHERE j.id = count.job_id
  AND (SELECT count(*) FROM guard) >= 0
RETURNING j.id, j.type_name, j.status;

-- name: waits_for
-- params: ids
-- The chains that these chains wait for, directly or through others, themselves included.
WITH RECURSIVE reached (chain_id) AS (
    SELECT n.id FROM unnest(:ids::{id_type}[]) AS n (id)
    UNION
    SELECT b.blocked_by_chain_id
    FROM reached r
    JOIN {job} j ON j.chain_id = r.chain_id
    JOIN {job_blocker} b ON b.job_id = j.id
    WHERE j.status = 'blocked'
)
SELECT chain_id FROM reached;
