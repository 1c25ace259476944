-- name: get_jobs
-- params: ids
-- Jobs by id.
SELECT {j_columns}
FROM json_each(:ids) i
CROSS JOIN {job} j ON j.id = i.value;

-- name: get_chains
-- params: ids
-- Chains by id, each read through its first job and its tail.
SELECT {chain_columns}
FROM json_each(:ids) i
CROSS JOIN {job} r ON r.id = i.value AND r.chain_id = r.id
JOIN {job} t ON t.id = (SELECT l.id FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1);

-- name: lock_jobs
-- params: ids
-- Take the write lock before reading on: a write that changes nothing.
UPDATE {job}
SET attempt = attempt
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id;

-- name: lock_jobs_now
-- params: ids
-- The same: nobody else can have locked a row.
UPDATE {job}
SET attempt = attempt
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id;

-- name: get_tails
-- params: ids
-- The tails of chains.
SELECT {j_columns}
FROM json_each(:ids) i
CROSS JOIN {job} r ON r.id = i.value AND r.chain_id = r.id
JOIN {job} j ON j.id = (SELECT l.id FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1);

-- name: get_blockers
-- params: ids
-- The chains that jobs were given as blockers, in the order given.
SELECT b.job_id, {chain_columns}
FROM json_each(:ids) i
CROSS JOIN {job_blocker} b ON b.job_id = i.value
JOIN {job} r ON r.id = b.blocked_by_chain_id
JOIN {job} t ON t.id = (SELECT l.id FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1)
ORDER BY b.job_id, b."index";

-- name: waiting_chains
-- params: ids
-- These chains and those whose tails wait for them, directly or through others. Nobody waits for a completed one.
-- The condition on the state names two tables, or SQLite would read all jobs for a Bloom filter of those that fulfil it.
WITH RECURSIVE reached (chain_id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT j.chain_id
    FROM reached r
    CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = r.chain_id
    CROSS JOIN {job} j ON j.id = b.job_id
    WHERE CASE WHEN r.chain_id IS NOT NULL THEN j.status END = 'blocked'
      AND (
          SELECT t.status FROM {job} t WHERE t.chain_id = r.chain_id ORDER BY t.chain_index DESC LIMIT 1
      ) <> 'completed'
)
SELECT chain_id FROM reached;

-- name: waiting_jobs
-- params: ids
-- The jobs that were given these chains as blockers, in whatever state.
SELECT b.job_id
FROM json_each(:ids) i
CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = i.value;

-- name: blocker_chains
-- params: ids
-- These chains and all that their jobs were ever given as blockers, directly or through others.
WITH RECURSIVE reached (chain_id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT b.blocked_by_chain_id
    FROM reached r
    CROSS JOIN {job} j ON j.chain_id = r.chain_id
    CROSS JOIN {job_blocker} b ON b.job_id = j.id
)
SELECT chain_id FROM reached;

-- name: connected_chains
-- params: ids
-- All chains linked to these by blockers, in either direction, themselves included.
WITH RECURSIVE reached (chain_id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT b.blocked_by_chain_id
    FROM reached r
    CROSS JOIN {job} j ON j.chain_id = r.chain_id
    CROSS JOIN {job_blocker} b ON b.job_id = j.id
    UNION
    SELECT j.chain_id
    FROM reached r
    CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = r.chain_id
    CROSS JOIN {job} j ON j.id = b.job_id
)
SELECT chain_id FROM reached;

-- name: cancel_tails
-- params: ids, actor
-- Cancel open tails; a running one ends its attempt as cancelled.
INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, finished_at, outcome)
SELECT j.id, j.attempt, j.leased_by, j.last_attempt_at, {now}, 'cancelled'
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND j.status = 'running';
INSERT INTO {job_event} (job_id, event, actor)
SELECT j.id, 'CANCELLED', :actor
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND j.status IN ('blocked', 'pending', 'running');
UPDATE {job}
SET status = 'cancelled',
    completed_at = {now},
    leased_by = NULL,
    leased_until = NULL,
    lease_token = NULL,
    suspect = 0
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('blocked', 'pending', 'running')
RETURNING id, chain_id;

-- name: retry_tails
-- params: ids, actor
-- Give failed or cancelled tails fresh attempts; those with open blockers go back to waiting for them.
INSERT INTO {job_event} (job_id, event, actor)
SELECT j.id, 'RETRIED', :actor
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND j.status IN ('failed', 'cancelled');
UPDATE {job}
SET status = CASE WHEN open_blockers > 0 THEN 'blocked' ELSE 'pending' END,
    completed_at = NULL,
    scheduled_at = max(scheduled_at, {now}),
    attempts_forgiven = attempt,
    suspect = 0
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('failed', 'cancelled')
RETURNING id, type_name, status;

-- name: missing_blockers
-- params: ids
-- Which of these jobs had a blocker that has been deleted.
SELECT j.id
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids))
  AND j.blocker_count > (SELECT count(*) FROM {job_blocker} b WHERE b.job_id = j.id);

-- name: trigger_jobs
-- params: ids, actor
-- Make pending jobs due now.
INSERT INTO {job_event} (job_id, event, actor)
SELECT j.id, 'TRIGGERED', :actor
FROM {job} j
WHERE j.id IN (SELECT value FROM json_each(:ids)) AND j.status = 'pending';
UPDATE {job}
SET scheduled_at = min(scheduled_at, {now})
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'pending'
RETURNING id, type_name;

-- name: add_events
-- params: items
-- Note acts that no other table tells of.
INSERT INTO {job_event} (job_id, event, actor, detail)
SELECT
    json_extract(value, '$.job_id'),
    json_extract(value, '$.event'),
    json_extract(value, '$.actor'),
    json_extract(value, '$.detail')
FROM json_each(:items);

-- name: lock_chains
-- params: ids
-- Take the write lock before reading on, and name every job of these chains.
UPDATE {job}
SET attempt = attempt
WHERE chain_id IN (SELECT value FROM json_each(:ids))
RETURNING id, chain_id;

-- name: blocker_references
-- params: ids
-- Jobs outside these chains that still wait for one of them.
SELECT b.job_id, j.chain_id, b.blocked_by_chain_id
FROM json_each(:ids) i
CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = i.value
JOIN {job} j ON j.id = b.job_id
WHERE j.status NOT IN ('completed', 'cancelled')
  AND j.chain_id NOT IN (SELECT value FROM json_each(:ids))
ORDER BY b.job_id, b."index";

-- name: delete_references
-- params: ids
-- Forget that these chains were blockers.
DELETE FROM {job_blocker}
WHERE blocked_by_chain_id IN (SELECT value FROM json_each(:ids));

-- name: delete_chains
-- params: ids
-- Delete every job of these chains; their attempts, events and blocker rows go with them.
DELETE FROM {job}
WHERE chain_id IN (SELECT value FROM json_each(:ids))
RETURNING chain_id, chain_type_name, deduplication_key;

-- name: delete_unused_keys
-- params: items
-- Drop deduplication keys that no chain carries any more.
DELETE FROM {job_key}
WHERE (chain_type_name, deduplication_key) IN (
    SELECT json_extract(value, '$.type_name'), json_extract(value, '$.key')
    FROM json_each(:items)
)
  AND NOT EXISTS (
      SELECT 1
      FROM {job} t
      WHERE t.chain_type_name = {job_key}.chain_type_name
        AND t.deduplication_key = {job_key}.deduplication_key
        AND t.deduplication_key IS NOT NULL
        AND t.continued_to IS NULL
  );

-- name: expired_chains
-- params: type_name, status, age, after_at, after_id, limit
-- Chains of a type that closed longer ago than an age, in the order they were created, beyond a point.
-- A chain closes after it was created, so the index on creation bounds the scan.
SELECT
    t.chain_id,
    t.chain_created_at,
    t.completed_at < strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('-%.3f seconds', :age)) || '000Z'
    AND NOT EXISTS (
        SELECT 1
        FROM {job_blocker} b
        JOIN {job} j ON j.id = b.job_id
        WHERE b.blocked_by_chain_id = t.chain_id
          AND j.status NOT IN ('completed', 'cancelled')
          AND j.chain_id <> t.chain_id
    )
FROM {job} t
WHERE t.continued_to IS NULL
  AND t.chain_type_name = :type_name
  AND t.status = :status
  AND t.chain_created_at < strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('-%.3f seconds', :age)) || '000Z'
  AND (t.chain_created_at, t.chain_id) > (coalesce(:after_at, ''), coalesce(:after_id, ''))
ORDER BY t.chain_created_at, t.chain_id
LIMIT :limit;

-- name: chain_types
-- params:
-- The types of all chains, by jumping from one to the next in the index.
WITH RECURSIVE found (name) AS (
    SELECT min(t.chain_type_name) FROM {job} t WHERE t.continued_to IS NULL
    UNION ALL
    SELECT (SELECT min(t.chain_type_name) FROM {job} t WHERE t.continued_to IS NULL AND t.chain_type_name > found.name)
    FROM found
    WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL;

-- name: take_singleton
-- params: name, owner, lease
-- Take a task that one process at a time does, if it is due and nobody is at it.
INSERT INTO {singleton} AS s (name, leased_by, leased_until)
VALUES (:name, :owner, strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', :lease)) || '000Z')
ON CONFLICT (name) DO UPDATE
    SET leased_by = excluded.leased_by,
        leased_until = excluded.leased_until
    WHERE (s.leased_until IS NULL OR s.leased_until < {now})
      AND (s.next_run_at IS NULL OR s.next_run_at <= {now})
RETURNING last_run_at, next_run_at;

-- name: finish_singleton
-- params: name, owner, next_at, next_in
-- Note that the task was done, and when it is due again.
UPDATE {singleton}
SET leased_by = NULL,
    leased_until = NULL,
    last_run_at = {now},
    next_run_at = coalesce(
        :next_at, strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', :next_in)) || '000Z'
    )
WHERE name = :name AND leased_by = :owner
RETURNING name;

-- name: list_singletons
-- params:
-- The tasks that one process at a time does.
SELECT s.name, s.leased_by, s.leased_until, s.last_run_at, s.next_run_at
FROM {singleton} s
ORDER BY s.name;

-- name: advance_singleton
-- params: name, expected, next_at, ran
-- Set when a task is due next, if nobody else has done so since it was read.
INSERT INTO {singleton} AS s (name, next_run_at)
VALUES (:name, :next_at)
ON CONFLICT (name) DO UPDATE
    SET next_run_at = excluded.next_run_at,
        last_run_at = CASE WHEN :ran THEN {now} ELSE s.last_run_at END
    WHERE s.next_run_at IS :expected
RETURNING name;
