-- name: get_jobs
-- params: ids
-- Jobs by id.
SELECT {j_columns}
FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
JOIN {job} j ON j.id = i.id::{id_type};

-- name: get_chains
-- params: ids
-- Chains by id, each read through its first job and its tail.
SELECT {chain_columns}
FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
CROSS JOIN LATERAL (SELECT j.* FROM {job} j WHERE j.id = i.id::{id_type} OFFSET 0) r
CROSS JOIN LATERAL (SELECT l.* FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1) t
WHERE r.chain_id = r.id;

-- name: lock_jobs
-- params: ids
-- Lock jobs in id order, waiting for whoever holds them.
SELECT j.id
FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
JOIN {job} j ON j.id = i.id::{id_type}
ORDER BY j.id
FOR NO KEY UPDATE OF j;

-- name: lock_jobs_now
-- params: ids
-- The same without waiting: what somebody else has locked is left out.
SELECT j.id
FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
JOIN {job} j ON j.id = i.id::{id_type}
ORDER BY j.id
FOR NO KEY UPDATE OF j SKIP LOCKED;

-- name: get_tails
-- params: ids
-- The tails of chains.
SELECT {j_columns}
FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
CROSS JOIN LATERAL (SELECT j.* FROM {job} j WHERE j.id = i.id::{id_type} OFFSET 0) r
CROSS JOIN LATERAL (SELECT l.* FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1) j
WHERE r.chain_id = r.id;

-- name: get_blockers
-- params: ids
-- The chains that jobs were given as blockers, in the order given.
SELECT b.job_id, {chain_columns}
FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
JOIN {job_blocker} b ON b.job_id = i.id::{id_type}
JOIN {job} r ON r.id = b.blocked_by_chain_id
CROSS JOIN LATERAL (SELECT l.* FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1) t
ORDER BY b.job_id, b.index;

-- name: waiting_chains
-- params: ids
-- These chains and those whose tails wait for them, directly or through others. Nobody waits for a completed one.
WITH RECURSIVE reached (chain_id) AS (
    SELECT i.id::{id_type} FROM unnest(ARRAY(SELECT json_array_elements_text(:ids::json))) AS i (id)
    UNION
    SELECT waiting.chain_id
    FROM (SELECT reached.chain_id FROM reached {few}) r
    CROSS JOIN LATERAL (
        SELECT t.status FROM {job} t WHERE t.chain_id = r.chain_id ORDER BY t.chain_index DESC LIMIT 1
    ) tail
    CROSS JOIN LATERAL (
        SELECT j.chain_id
        FROM (SELECT b.job_id FROM {job_blocker} b WHERE b.blocked_by_chain_id = r.chain_id OFFSET 0) b
        CROSS JOIN LATERAL (SELECT j.chain_id, j.status FROM {job} j WHERE j.id = b.job_id OFFSET 0) j
        WHERE j.status = 'blocked'
    ) waiting
    WHERE tail.status <> 'completed'
)
SELECT chain_id FROM reached;

-- name: waiting_jobs
-- params: ids
-- The jobs that were given these chains as blockers, in whatever state.
SELECT b.job_id
FROM json_array_elements_text(:ids::json) AS i (id)
CROSS JOIN LATERAL (SELECT b.job_id FROM {job_blocker} b WHERE b.blocked_by_chain_id = i.id::{id_type} OFFSET 0) b;

-- name: blocker_chains
-- params: ids
-- These chains and all that their jobs were ever given as blockers, directly or through others.
WITH RECURSIVE reached (chain_id) AS (
    SELECT i.id::{id_type} FROM unnest(ARRAY(SELECT json_array_elements_text(:ids::json))) AS i (id)
    UNION
    SELECT b.blocked_by_chain_id
    FROM (SELECT reached.chain_id FROM reached {few}) r
    JOIN {job} j ON j.chain_id = r.chain_id
    JOIN {job_blocker} b ON b.job_id = j.id
)
SELECT chain_id FROM reached;

-- name: connected_chains
-- params: ids
-- All chains linked to these by blockers, in either direction, themselves included.
WITH RECURSIVE reached (chain_id) AS (
    SELECT i.id::{id_type} FROM unnest(ARRAY(SELECT json_array_elements_text(:ids::json))) AS i (id)
    UNION
    SELECT linked.chain_id
    FROM (SELECT reached.chain_id FROM reached {few}) r
    CROSS JOIN LATERAL (
        SELECT b.blocked_by_chain_id AS chain_id
        FROM {job} j
        JOIN {job_blocker} b ON b.job_id = j.id
        WHERE j.chain_id = r.chain_id
        UNION ALL
        SELECT j.chain_id
        FROM {job_blocker} b
        JOIN {job} j ON j.id = b.job_id
        WHERE b.blocked_by_chain_id = r.chain_id
    ) linked
)
SELECT chain_id FROM reached;

-- name: cancel_tails
-- params: ids, actor
-- Cancel open tails; a running one ends its attempt as cancelled.
WITH old AS MATERIALIZED (
    SELECT j.id, j.status, j.attempt, j.leased_by, j.last_attempt_at
    FROM {job} j
    WHERE j.id IN (SELECT i.id::{id_type} FROM json_array_elements_text(:ids::json) AS i (id))
      AND j.status IN ('blocked', 'pending', 'running')
    ORDER BY j.id
    FOR NO KEY UPDATE
),
cancelled AS (
    UPDATE {job} j
    SET status = 'cancelled',
        completed_at = {now},
        leased_by = NULL,
        leased_until = NULL,
        lease_token = NULL,
        suspect = false
    FROM old
    WHERE j.id = old.id
    RETURNING j.id, j.chain_id
),
attempt AS (
    INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, finished_at, outcome)
    SELECT old.id, old.attempt, old.leased_by, old.last_attempt_at, {now}, 'cancelled'
    FROM old
    WHERE old.status = 'running'
),
event AS (
    INSERT INTO {job_event} (job_id, event, actor)
    SELECT old.id, 'CANCELLED', :actor FROM old
)
SELECT cancelled.id, cancelled.chain_id FROM cancelled;

-- name: retry_tails
-- params: ids, actor
-- Give failed or cancelled tails fresh attempts; those with open blockers go back to waiting for them.
WITH old AS MATERIALIZED (
    SELECT j.id
    FROM {job} j
    WHERE j.id IN (SELECT i.id::{id_type} FROM json_array_elements_text(:ids::json) AS i (id))
      AND j.status IN ('failed', 'cancelled')
    ORDER BY j.id
    FOR NO KEY UPDATE
),
retried AS (
    UPDATE {job} j
    SET status = CASE WHEN j.open_blockers > 0 THEN 'blocked' ELSE 'pending' END::{job_status},
        completed_at = NULL,
        scheduled_at = greatest(j.scheduled_at, {now}),
        attempts_forgiven = j.attempt,
        suspect = false
    FROM old
    WHERE j.id = old.id
    RETURNING j.id, j.type_name, j.status
),
event AS (
    INSERT INTO {job_event} (job_id, event, actor)
    SELECT retried.id, 'RETRIED', :actor FROM retried
)
SELECT retried.id, retried.type_name, retried.status FROM retried;

-- name: missing_blockers
-- params: ids
-- Which of these jobs had a blocker that has been deleted. The others' are locked, as they are when a job is created: somebody
-- may be about to delete one. One that was deleted while this waited for it is not among those that are locked.
WITH held AS MATERIALIZED (
    SELECT b.job_id
    FROM {job_blocker} b
    JOIN {job} r ON r.id = b.blocked_by_chain_id
    WHERE b.job_id = ANY (ARRAY(SELECT i.id::{id_type} FROM json_array_elements_text(:ids::json) AS i (id)))
    ORDER BY r.id
    FOR KEY SHARE OF r
)
SELECT j.id
FROM {job} j
WHERE j.id IN (SELECT i.id::{id_type} FROM json_array_elements_text(:ids::json) AS i (id))
  AND j.blocker_count > (SELECT count(*) FROM held WHERE held.job_id = j.id);

-- name: trigger_jobs
-- params: ids, actor
-- Make pending jobs due now.
WITH triggered AS (
    UPDATE {job} j
    SET scheduled_at = least(j.scheduled_at, {now})
    WHERE j.id IN (SELECT i.id::{id_type} FROM json_array_elements_text(:ids::json) AS i (id))
      AND j.status = 'pending'
    RETURNING j.id, j.type_name
),
event AS (
    INSERT INTO {job_event} (job_id, event, actor)
    SELECT triggered.id, 'TRIGGERED', :actor FROM triggered
)
SELECT triggered.id, triggered.type_name FROM triggered;

-- name: add_events
-- params: items
-- Note acts that no other table tells of.
INSERT INTO {job_event} (job_id, event, actor, detail)
SELECT i.job_id, i.event, i.actor, i.detail::jsonb
FROM json_to_recordset(:items::json) AS i (job_id {id_type}, event text, actor text, detail text);

-- name: lock_chains
-- params: ids
-- Lock every job of these chains in id order.
SELECT j.id, j.chain_id
FROM {job} j
WHERE j.chain_id IN (SELECT i.id::{id_type} FROM json_array_elements_text(:ids::json) AS i (id))
ORDER BY j.id
FOR UPDATE;

-- name: blocker_references
-- params: ids
-- Jobs outside these chains that still wait for one of them.
SELECT b.job_id, j.chain_id, b.blocked_by_chain_id
FROM json_array_elements_text(:ids::json) AS i (id)
CROSS JOIN LATERAL (
    SELECT b.job_id, b.blocked_by_chain_id, b.index
    FROM {job_blocker} b
    WHERE b.blocked_by_chain_id = i.id::{id_type}
    OFFSET 0
) b
CROSS JOIN LATERAL (SELECT j.chain_id, j.status FROM {job} j WHERE j.id = b.job_id OFFSET 0) j
WHERE j.status NOT IN ('completed', 'cancelled')
  AND j.chain_id NOT IN (SELECT o.id::{id_type} FROM json_array_elements_text(:ids::json) AS o (id))
ORDER BY b.job_id, b.index;

-- name: delete_references
-- params: ids
-- Forget that these chains were blockers.
DELETE FROM {job_blocker} b
WHERE b.blocked_by_chain_id = ANY (
    ARRAY(SELECT i.id::{id_type} FROM json_array_elements_text(:ids::json) AS i (id))
);

-- name: delete_chains
-- params: ids
-- Delete every job of these chains; their attempts, events and blocker rows go with them.
DELETE FROM {job} j
WHERE j.chain_id IN (SELECT i.id::{id_type} FROM json_array_elements_text(:ids::json) AS i (id))
RETURNING j.chain_id, j.chain_type_name, j.deduplication_key;

-- name: delete_unused_keys
-- params: items
-- Drop deduplication keys that no chain carries any more. By their place: one that somebody has touched meanwhile has moved,
-- and is not found.
DELETE FROM {job_key} k
WHERE k.ctid = ANY (ARRAY(
    SELECT found.place
    FROM json_to_recordset(:items::json) AS i (type_name text, key text)
    CROSS JOIN LATERAL (
        SELECT k.ctid AS place
        FROM {job_key} k
        WHERE k.chain_type_name = i.type_name AND k.deduplication_key = i.key
        LIMIT 1
    ) found
    WHERE NOT EXISTS (
        SELECT 1
        FROM {job} t
        WHERE t.chain_type_name = i.type_name AND t.deduplication_key = i.key AND t.continued_to IS NULL
    )
));

-- name: expired_chains
-- params: type_name, status, age, after_at, after_id, limit
-- Chains of a type that closed longer ago than an age, in the order they were created, beyond a point.
-- A chain closes after it was created, so the index on creation bounds the scan.
SELECT t.chain_id, t.chain_created_at, t.completed_at < {now} - make_interval(secs => :age)
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
  AND t.status = :status::{job_status}
  AND t.chain_created_at < {now} - make_interval(secs => :age)
  AND (t.chain_created_at, t.chain_id) > (coalesce(:after_at::timestamptz, '-infinity'), :after_id::{id_type})
ORDER BY t.chain_created_at, t.chain_id
LIMIT :limit;

-- name: chain_types
-- params:
-- The types of all chains, by jumping from one to the next in the index.
WITH RECURSIVE found (name) AS (
    (SELECT t.chain_type_name FROM {job} t WHERE t.continued_to IS NULL ORDER BY t.chain_type_name LIMIT 1)
    UNION ALL
    SELECT (
        SELECT t.chain_type_name
        FROM {job} t
        WHERE t.continued_to IS NULL AND t.chain_type_name > found.name
        ORDER BY t.chain_type_name
        LIMIT 1
    )
    FROM found
    WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL;

-- name: take_singleton
-- params: name, owner, lease
-- Take a task that one process at a time does, if it is due and nobody is at it.
INSERT INTO {singleton} AS s (name, leased_by, leased_until)
VALUES (:name, :owner, {now} + make_interval(secs => :lease))
ON CONFLICT (name) DO UPDATE
    SET leased_by = excluded.leased_by,
        leased_until = excluded.leased_until
    WHERE (s.leased_until IS NULL OR s.leased_until < {now})
      AND (s.next_run_at IS NULL OR s.next_run_at <= {now})
RETURNING s.last_run_at, s.next_run_at;

-- name: finish_singleton
-- params: name, owner, next_at, next_in
-- Note that the task was done, and when it is due again.
UPDATE {singleton}
SET leased_by = NULL,
    leased_until = NULL,
    last_run_at = {now},
    next_run_at = coalesce(:next_at::timestamptz, {now} + make_interval(secs => :next_in::double precision))
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
VALUES (:name, :next_at::timestamptz)
ON CONFLICT (name) DO UPDATE
    SET next_run_at = excluded.next_run_at,
        last_run_at = CASE WHEN :ran THEN {now} ELSE s.last_run_at END
    WHERE s.next_run_at IS NOT DISTINCT FROM :expected::timestamptz
RETURNING s.name;
