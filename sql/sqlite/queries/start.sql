-- name: insert_chain
-- params: id, type_name, input, priority, max_attempts, trace
-- Insert the first job of a new chain that is due now and waits for nothing; when it was created. What has more to it goes by
-- insert_chains.
INSERT INTO {job} (
    id, type_name, chain_id, chain_type_name, input, priority, max_attempts, chain_trace_context, trace_context
)
VALUES (:id, :type_name, :id, :type_name, :input, :priority, :max_attempts, :trace, :trace);
SELECT created_at FROM {job} WHERE rowid = last_insert_rowid();

-- name: insert_chains
-- params: items
-- Insert the first jobs of many new chains; when they were created. One with blockers starts as blocked, with all of them counted
-- as open. A statement with RETURNING inside a transaction keeps a
-- journal to be undone alone, which costs as much as the insert: so the time is read after it.
INSERT INTO {job} (
    id, type_name, chain_id, chain_type_name, input, status, priority, created_at, scheduled_at, max_attempts,
    deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context, trace_context,
    blockers_until, on_failed, limit_name, limit_key, limit_at
)
SELECT
    i.id, i.type_name, i.id, i.type_name, i.input,
    CASE WHEN i.blockers > 0 THEN 'blocked' ELSE 'pending' END,
    coalesce(i.priority, 0), {now}, max({now}, coalesce(i.at, {now + i.after seconds}, {now})),
    i.max_attempts, i.key, {now}, coalesce(i.blockers, 0), coalesce(i.blockers, 0), i.trace, i.trace,
    coalesce(i.until, 'completed'), i.on_failed, i.limit_name, i.limit_key, CASE WHEN i.limit_strict THEN {now} END
FROM (
    SELECT
        json_extract(value, '$.id') AS id,
        json_extract(value, '$.type_name') AS type_name,
        json_extract(value, '$.input') AS input,
        json_extract(value, '$.priority') AS priority,
        json_extract(value, '$.at') AS at,
        json_extract(value, '$.after') AS after,
        json_extract(value, '$.max_attempts') AS max_attempts,
        json_extract(value, '$.key') AS key,
        json_extract(value, '$.blockers') AS blockers,
        json_extract(value, '$.trace') AS trace,
        json_extract(value, '$.until') AS until,
        json_extract(value, '$.on_failed') AS on_failed,
        json_extract(value, '$.limit_name') AS limit_name,
        json_extract(value, '$.limit_key') AS limit_key,
        json_extract(value, '$.limit_strict') AS limit_strict
    FROM json_each(:items)
) i;
SELECT created_at FROM {job} WHERE rowid = last_insert_rowid();

-- name: touch_keys
-- params: items
-- Take the write lock and note the deduplication keys, so that cleanup knows which there are.
INSERT INTO {job_key} (chain_type_name, deduplication_key)
SELECT json_extract(value, '$.type_name'), json_extract(value, '$.key')
FROM json_each(:items)
WHERE true
ON CONFLICT (chain_type_name, deduplication_key) DO UPDATE
    SET deduplication_key = excluded.deduplication_key;

-- name: find_duplicates
-- params: items
-- For each wanted key the newest chain that stands in its way. A branch for each scope, so that each has an index of its own:
-- a key may have any number of closed chains.
SELECT i.n, d.chain_id
FROM (
    SELECT
        json_extract(item.value, '$.n') AS n,
        CASE json_extract(item.value, '$.scope')
            WHEN 'any' THEN (
                SELECT t.id
                FROM {job} t
                WHERE t.chain_type_name = json_extract(item.value, '$.type_name')
                  AND t.deduplication_key = json_extract(item.value, '$.key')
                  AND t.deduplication_key IS NOT NULL
                  AND t.continued_to IS NULL
                  AND (
                      json_extract(item.value, '$.since') IS NULL
                      OR t.chain_created_at > {now - json_extract(item.value, '$.since') seconds}
                  )
                  AND t.chain_id NOT IN (SELECT e.value FROM json_each(json_extract(item.value, '$.exclude')) e)
                ORDER BY t.chain_created_at DESC
                LIMIT 1
            )
            ELSE (
                SELECT t.id
                FROM {job} t
                WHERE t.chain_type_name = json_extract(item.value, '$.type_name')
                  AND t.deduplication_key = json_extract(item.value, '$.key')
                  AND t.deduplication_key IS NOT NULL
                  AND t.continued_to IS NULL
                  AND t.status IN ('blocked', 'pending', 'running')
                  AND (
                      json_extract(item.value, '$.since') IS NULL
                      OR t.chain_created_at > {now - json_extract(item.value, '$.since') seconds}
                  )
                  AND t.chain_id NOT IN (SELECT e.value FROM json_each(json_extract(item.value, '$.exclude')) e)
                ORDER BY t.chain_created_at DESC
                LIMIT 1
            )
        END AS tail_id
    FROM json_each(:items) item
) i
JOIN {job} d ON d.id = i.tail_id;

-- name: insert_blockers
-- params: items
-- Note which chains a job waits for.
INSERT INTO {job_blocker} (job_id, blocked_by_chain_id, "index", trace_context)
SELECT
    json_extract(value, '$.job_id'),
    json_extract(value, '$.chain_id'),
    json_extract(value, '$.index'),
    json_extract(value, '$.trace')
FROM json_each(:items);

-- name: settle_blockers
-- params: ids
-- Count the blockers that are still open and free the jobs that have none.
UPDATE {job}
SET open_blockers = count.open,
    status = CASE WHEN count.open > 0 THEN 'blocked' ELSE 'pending' END
FROM (
    SELECT
        b.job_id,
        count(*) FILTER (
            WHERE t.status <> 'completed' AND (w.blockers_until = 'completed' OR t.status NOT IN ('failed', 'cancelled'))
        ) AS open
    FROM json_each(:ids) new
    JOIN {job} w ON w.id = new.value
    JOIN {job_blocker} b ON b.job_id = new.value
    JOIN {job} t
      ON t.id = (SELECT l.id FROM {job} l WHERE l.chain_id = b.blocked_by_chain_id ORDER BY l.chain_index DESC LIMIT 1)
    GROUP BY b.job_id
) count
WHERE id = count.job_id
RETURNING id, type_name, status;

-- name: waits_for
-- params: ids
-- The chains that these chains wait for, directly or through others, themselves included. The condition on the state names
-- two tables, or SQLite would read all jobs for a Bloom filter of those that fulfil it.
WITH RECURSIVE reached (chain_id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT b.blocked_by_chain_id
    FROM reached r
    CROSS JOIN {job} j ON j.chain_id = r.chain_id
    CROSS JOIN {job_blocker} b ON b.job_id = CASE WHEN j.status = 'blocked' THEN j.id END
)
SELECT chain_id FROM reached;
