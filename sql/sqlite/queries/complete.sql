-- An item of these is a list: id, worker, token, output, outcome, holder, waited, and where the chain goes on the columns of the
-- next job, from its id on. Lists are written and read faster than objects.

-- name: mark_completed
-- params: items
-- Complete jobs where the lease is still the one that the item names; without a token from outside, whoever holds them.
UPDATE {job} AS j
SET status = 'completed',
    output = item.output,
    completed_at = {now},
    completed_by = item.worker,
    leased_by = NULL,
    leased_until = NULL,
    last_attempt_error = NULL,
    error_code = NULL,
    suspect = 0,
    continued_to = item.next_id
FROM (
    SELECT
        json_extract(value, '$[0]') AS id,
        json_extract(value, '$[1]') AS worker,
        json_extract(value, '$[2]') AS token,
        json_extract(value, '$[3]') AS output,
        json_extract(value, '$[7]') AS next_id
    FROM json_each(:items)
) item
WHERE j.id = item.id
  AND (({fence}) OR (item.token IS NULL AND j.status IN ('pending', 'running', 'failed')));

-- name: mark_one_completed
-- params: worker, id, token, output, next_id
-- Complete one job where the lease is still the one named; without a token from outside, whoever holds it.
UPDATE {job} AS j
SET status = 'completed',
    output = :output,
    completed_at = {now},
    completed_by = item.worker,
    leased_by = NULL,
    leased_until = NULL,
    last_attempt_error = NULL,
    error_code = NULL,
    suspect = 0,
    continued_to = :next_id
FROM (SELECT :worker AS worker, :token AS token) item
WHERE j.id = :id
  AND (({fence}) OR (item.token IS NULL AND j.status IN ('pending', 'running', 'failed')));

-- name: completed_ids
-- params: items
-- Which of the items' jobs mark_completed has just completed, where not all of them were. A token is used once.
SELECT j.id
FROM json_each(:items) i
CROSS JOIN {job} j ON j.id = json_extract(i.value, '$[0]')
WHERE j.status = 'completed'
  AND j.completed_by IS json_extract(i.value, '$[1]')
  AND j.lease_token IS json_extract(i.value, '$[2]');

-- name: insert_attempts
-- params: items
-- Write the attempts of jobs that were just completed.
INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
SELECT
    j.id, j.attempt, coalesce(j.completed_by, json_extract(i.value, '$[5]')), j.last_attempt_at,
    CASE WHEN json_extract(i.value, '$[6]') IS NOT NULL
        THEN min({j.last_attempt_at + json_extract(i.value, '$[6]') seconds}, j.completed_at) END,
    j.completed_at, json_extract(i.value, '$[4]')
FROM json_each(:items) i
CROSS JOIN {job} j ON j.id = json_extract(i.value, '$[0]')
WHERE json_extract(i.value, '$[4]') IS NOT NULL;

-- name: insert_attempt
-- params: id, outcome, holder, waited
-- Write the attempt of one job that was just completed.
INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
SELECT
    j.id, j.attempt, coalesce(j.completed_by, :holder), j.last_attempt_at,
    CASE WHEN :waited IS NOT NULL THEN min({j.last_attempt_at + :waited seconds}, j.completed_at) END, j.completed_at, :outcome
FROM {job} j
WHERE j.id = :id;

-- name: insert_continuations
-- params: items
-- Insert the next jobs of chains whose jobs were just completed.
INSERT INTO {job} (
    id, type_name, chain_id, chain_type_name, chain_index, input, status, priority, created_at, scheduled_at,
    max_attempts, deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context, trace_context,
    blockers_until, on_failed, limit_name, limit_key, limit_at
)
SELECT
    i.next_id, i.next_type, j.chain_id, j.chain_type_name, j.chain_index + 1, i.next_input,
    CASE WHEN i.next_blockers > 0 THEN 'blocked' ELSE 'pending' END,
    coalesce(i.next_priority, j.priority), {now}, max({now}, coalesce(i.next_at, {now + i.next_after seconds}, {now})),
    i.next_max_attempts, j.deduplication_key, j.chain_created_at, i.next_blockers, i.next_blockers,
    j.chain_trace_context, i.next_trace, coalesce(i.next_until, 'completed'), i.next_on_failed,
    i.next_limit_name, i.next_limit_key, CASE WHEN i.next_limit_strict THEN {now} END
FROM (
    SELECT
        json_extract(value, '$[0]') AS id,
        json_extract(value, '$[7]') AS next_id,
        json_extract(value, '$[8]') AS next_type,
        json_extract(value, '$[9]') AS next_input,
        json_extract(value, '$[10]') AS next_priority,
        json_extract(value, '$[11]') AS next_at,
        json_extract(value, '$[12]') AS next_after,
        json_extract(value, '$[13]') AS next_max_attempts,
        json_extract(value, '$[14]') AS next_blockers,
        json_extract(value, '$[15]') AS next_trace,
        json_extract(value, '$[16]') AS next_until,
        json_extract(value, '$[17]') AS next_on_failed,
        json_extract(value, '$[18]') AS next_limit_name,
        json_extract(value, '$[19]') AS next_limit_key,
        json_extract(value, '$[20]') AS next_limit_strict
    FROM json_each(:items)
    WHERE json_extract(value, '$[7]') IS NOT NULL
) i
CROSS JOIN {job} j ON j.id = i.id;

-- name: awaited_chains
-- params: items
-- The chains that the items' jobs have closed and that others wait for, in one list: the driver gives up Python's lock for
-- every row that it fetches.
SELECT json_group_array(j.chain_id)
FROM json_each(:items) i
CROSS JOIN {job} j ON j.id = json_extract(i.value, '$[0]')
WHERE j.continued_to IS NULL
  AND EXISTS (SELECT 1 FROM {job_blocker} b WHERE b.blocked_by_chain_id = j.chain_id);

-- name: is_awaited
-- params: chain_id
-- Whether others wait for a chain.
SELECT EXISTS (SELECT 1 FROM {job_blocker} b WHERE b.blocked_by_chain_id = :chain_id);

-- name: release_dependants
-- params: chain_ids, completed
-- Chains have closed: count them down in the jobs that wait for them, and free the jobs that wait for nothing more. Chains that have
-- not `completed` count only for jobs that wait until their blockers have closed, however these ended; those are freed after a
-- recount, since workers of the release before this one do not count up when a failed blocker is retried.
UPDATE {job}
SET open_blockers = open_blockers - waiting.n,
    status = CASE
        WHEN status = 'blocked' AND blockers_until = 'completed' AND open_blockers <= waiting.n THEN 'pending'
        ELSE status
    END,
    scheduled_at = CASE
        WHEN status = 'blocked' AND blockers_until = 'completed' AND open_blockers <= waiting.n THEN max(scheduled_at, {now})
        ELSE scheduled_at
    END
FROM (
    SELECT b.job_id, count(*) AS n
    FROM json_each(:chain_ids) c
    CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = c.value
    GROUP BY b.job_id
) waiting
WHERE id = waiting.job_id AND (:completed OR blockers_until = 'closed')
RETURNING id, type_name, status, blockers_until, open_blockers;

-- name: reopen_blockers
-- params: ids
-- Closed chains are about to be open again: count them up in the jobs that wait until their blockers have closed.
UPDATE {job}
SET open_blockers = open_blockers + waiting.n
FROM (
    SELECT b.job_id, count(*) AS n
    FROM json_each(:ids) c
    CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = c.value
    GROUP BY b.job_id
) waiting
WHERE id = waiting.job_id AND blockers_until = 'closed';

-- name: recount_blockers
-- params: ids
-- Count anew the open blockers of jobs that wait until theirs have closed, and free those that have none.
UPDATE {job}
SET open_blockers = count.open,
    status = CASE WHEN count.open > 0 THEN 'blocked' ELSE 'pending' END,
    scheduled_at = CASE WHEN count.open > 0 THEN scheduled_at ELSE max(scheduled_at, {now}) END
FROM (
    SELECT
        i.value AS job_id,
        (
            SELECT count(*)
            FROM {job_blocker} b
            CROSS JOIN {job} t
              ON t.id = (SELECT l.id FROM {job} l WHERE l.chain_id = b.blocked_by_chain_id ORDER BY l.chain_index DESC LIMIT 1)
            WHERE b.job_id = i.value AND t.status IN ('blocked', 'pending', 'running')
        ) AS open
    FROM json_each(:ids) i
) count
WHERE id = count.job_id AND status = 'blocked' AND blockers_until = 'closed'
RETURNING id, type_name, status;

-- name: overdue_joins
-- params: limit
-- Jobs that wait until their blockers have closed, and whose blockers all have: who closed the last did not free them.
SELECT j.id
FROM {job} j
WHERE j.status = 'blocked' AND j.blockers_until = 'closed'
  AND NOT EXISTS (
    SELECT 1
    FROM {job_blocker} b
    CROSS JOIN {job} t
      ON t.id = (SELECT l.id FROM {job} l WHERE l.chain_id = b.blocked_by_chain_id ORDER BY l.chain_index DESC LIMIT 1)
    WHERE b.job_id = j.id AND t.status IN ('blocked', 'pending', 'running')
  )
ORDER BY j.id
LIMIT :limit;
