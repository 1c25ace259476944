-- name: claim_jobs
-- params: worker, token, types, levels, suspect, held, window, limit
-- nothing: find_due and take_due do it

-- name: claim_head
-- params: worker, token, type, lease, held, window, limit
-- nothing: find_due and take_due are quick enough

-- name: claimed_with
-- params: worker, token
-- nothing: answers of SQLite do not get lost

-- name: find_due
-- params: types, suspect, held, limit
-- Due jobs: the highest priority first, then the longest due. What take_due needs to take them, the time, and the jobs as they
-- will be then.
-- The (type, priority) pairs that have pending jobs are found by jumping from one to the next, so that future jobs of a high
-- priority are not walked through to reach due ones of a low.
-- All rows come in one JSON array: the driver gives up Python's lock for every row that it fetches, and while other threads
-- run it takes longer to get it back than to claim the job.
SELECT
    json_group_array(json_array(won.number, won.until, j.attempt)), {now},
    json_group_array(json_array({due_columns})), count(*)
FROM (
    WITH RECURSIVE found (type_name, until, priority) AS (
        SELECT
            json_extract(value, '$.name'),
            strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', json_extract(value, '$.lease'))) || '000Z',
            (
                SELECT j.priority
                FROM {job} j
                WHERE j.status = 'pending' AND j.type_name = json_extract(value, '$.name') AND j.suspect = :suspect
                ORDER BY j.priority DESC
                LIMIT 1
            )
        FROM json_each(:types)
        UNION ALL
        SELECT
            found.type_name,
            found.until,
            (
                SELECT j.priority
                FROM {job} j
                WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = :suspect
                  AND j.priority < found.priority
                ORDER BY j.priority DESC
                LIMIT 1
            )
        FROM found
        WHERE found.priority IS NOT NULL
    )
    SELECT c.rowid AS number, found.until
    FROM found
    CROSS JOIN {job} c
    WHERE found.priority IS NOT NULL
      AND c.rowid IN (
        SELECT j.rowid
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = :suspect
          AND j.priority = found.priority AND j.scheduled_at <= {now}
          AND (:held = '[]' OR j.id NOT IN (SELECT value FROM json_each(:held)))  -- the index does not know the id
        ORDER BY j.scheduled_at
        LIMIT :limit
    )
    ORDER BY found.priority DESC, c.scheduled_at
    LIMIT :limit
) won
CROSS JOIN {job} j ON j.rowid = won.number;

-- name: take_due
-- params: worker, token, won, now
-- Claim what find_due has found, except what another process has changed since. Two statements that commit by themselves let
-- other threads in less often than a transaction would.
UPDATE {job}
SET status = 'running',
    attempt = attempt + 1,
    last_attempt_at = :now,
    leased_by = :worker,
    lease_token = :token,
    leased_until = json_extract(won.value, '$[1]'),
    heartbeat_at = NULL
FROM json_each(:won) won
WHERE {job}.rowid = json_extract(won.value, '$[0]')
  AND status = 'pending' AND attempt = json_extract(won.value, '$[2]') AND scheduled_at <= :now;

-- name: taken_ids
-- params: worker, token, won
-- Which of them were claimed, where not all of them were.
SELECT j.id
FROM json_each(:won) won
CROSS JOIN {job} j ON j.rowid = json_extract(won.value, '$[0]')
WHERE j.status = 'running' AND j.leased_by = :worker AND j.lease_token = :token;

-- name: next_due
-- params: types
-- Seconds until the earliest pending job of these types is due; no row where there is none.
WITH RECURSIVE found (type_name, suspect, priority) AS (
    SELECT
        t.value,
        s.value,
        (
            SELECT j.priority
            FROM {job} j
            WHERE j.status = 'pending' AND j.type_name = t.value AND j.suspect = s.value
            ORDER BY j.priority DESC
            LIMIT 1
        )
    FROM json_each(:types) t
    CROSS JOIN json_each('[0, 1]') s
    UNION ALL
    SELECT
        found.type_name,
        found.suspect,
        (
            SELECT j.priority
            FROM {job} j
            WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
              AND j.priority < found.priority
            ORDER BY j.priority DESC
            LIMIT 1
        )
    FROM found
    WHERE found.priority IS NOT NULL
)
SELECT (julianday(first.at) - julianday({now})) * 86400.0
FROM (
    SELECT (
        SELECT j.scheduled_at
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
          AND j.priority = found.priority
        ORDER BY j.scheduled_at
        LIMIT 1
    ) AS at
    FROM found
    WHERE found.priority IS NOT NULL
) first
WHERE first.at IS NOT NULL
ORDER BY first.at
LIMIT 1;

-- name: renew_leases
-- params: worker, items
-- Extend the leases this worker still holds; a row that is no longer its own is not returned.
UPDATE {job}
SET leased_until = strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', item.lease)) || '000Z',
    heartbeat_at = {now}
FROM (
    SELECT
        json_extract(value, '$.id') AS job_id,
        json_extract(value, '$.token') AS token,
        json_extract(value, '$.lease') AS lease
    FROM json_each(:items)
) item
WHERE id = item.job_id AND status = 'running' AND leased_by = :worker AND lease_token = item.token
RETURNING id;

-- name: lease_states
-- params: ids
-- Who holds these jobs now, and in what state they are.
SELECT j.id, j.status, j.leased_by, j.lease_token
FROM json_each(:ids) i
CROSS JOIN {job} j ON j.id = i.value;

-- name: lock_closing
-- params: ids
-- Take the write lock before reading on: a write that changes nothing. One writer at a time needs no row locks.
UPDATE {job}
SET attempt = attempt
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id;

-- name: lock_closing_now
-- params: ids
-- The same: nobody else can have locked a row.
UPDATE {job}
SET attempt = attempt
WHERE id IN (SELECT value FROM json_each(:ids))
RETURNING id;

-- name: complete_jobs
-- params: worker, items, closing, going_on, wait
-- Complete jobs and insert their continuations. A job whose lease is no longer held is not completed, and nothing is written
-- for it. Without a token it is completed from outside. The attempt and the continuation are written, and what is to be told is
-- found, before the job changes, under the same condition: there is one writer, so nothing can come between. An item is a list:
-- id, token, output, outcome, waited; if `going_on`, also the columns of the continuation. What comes back is one list, as by
-- claim_jobs: of the jobs that were not completed, and of those whose chain has ended and is waited for, with the chain.
INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
SELECT
    j.id, j.attempt, coalesce(:worker, j.leased_by), j.last_attempt_at,
    CASE WHEN json_extract(i.value, '$[4]') IS NOT NULL THEN min(
        strftime('%Y-%m-%dT%H:%M:%f', j.last_attempt_at, printf('%+.3f seconds', json_extract(i.value, '$[4]'))) || '000Z',
        {now}
    ) END,
    {now}, json_extract(i.value, '$[3]')
FROM json_each(:items) i
CROSS JOIN {job} j ON j.id = json_extract(i.value, '$[0]')
WHERE json_extract(i.value, '$[3]') IS NOT NULL
  AND :closing IS NULL AND :wait IS NULL
  AND (
      (j.status = 'running' AND j.leased_by = :worker AND j.lease_token = json_extract(i.value, '$[1]'))
      OR (json_extract(i.value, '$[1]') IS NULL AND j.status IN ('pending', 'running'))
  );
INSERT INTO {job} (
    id, type_name, chain_id, chain_type_name, chain_index, input, status, priority, created_at, scheduled_at,
    max_attempts, deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context, trace_context
)
SELECT
    i.next_id, i.next_type, j.chain_id, j.chain_type_name, j.chain_index + 1, i.next_input,
    CASE WHEN i.next_blockers > 0 THEN 'blocked' ELSE 'pending' END,
    coalesce(i.next_priority, j.priority), {now},
    max(
        {now},
        coalesce(
            i.next_at, strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', i.next_after)) || '000Z', {now}
        )
    ),
    i.next_max_attempts, j.deduplication_key, j.chain_created_at, i.next_blockers, i.next_blockers,
    j.chain_trace_context, i.next_trace
FROM (
    SELECT
        json_extract(value, '$[0]') AS job_id,
        json_extract(value, '$[1]') AS token,
        json_extract(value, '$[5]') AS next_id,
        json_extract(value, '$[6]') AS next_type,
        json_extract(value, '$[7]') AS next_input,
        json_extract(value, '$[8]') AS next_priority,
        json_extract(value, '$[9]') AS next_at,
        json_extract(value, '$[10]') AS next_after,
        json_extract(value, '$[11]') AS next_max_attempts,
        json_extract(value, '$[12]') AS next_blockers,
        json_extract(value, '$[13]') AS next_trace
    FROM json_each(:items)
    WHERE :going_on AND json_extract(value, '$[5]') IS NOT NULL
) i
CROSS JOIN {job} j ON j.id = i.job_id
WHERE (j.status = 'running' AND j.leased_by = :worker AND j.lease_token = i.token)
   OR (i.token IS NULL AND j.status IN ('pending', 'running'));
SELECT json_group_array(json_array(json_extract(i.value, '$[0]'), j.chain_id))
FROM json_each(:items) i
LEFT JOIN {job} j
    ON j.id = json_extract(i.value, '$[0]')
   AND (
       (j.status = 'running' AND j.leased_by = :worker AND j.lease_token = json_extract(i.value, '$[1]'))
       OR (json_extract(i.value, '$[1]') IS NULL AND j.status IN ('pending', 'running'))
   )
WHERE j.id IS NULL
   OR (
       json_extract(i.value, '$[5]') IS NULL
       AND EXISTS (SELECT 1 FROM {job_blocker} b WHERE b.blocked_by_chain_id = j.chain_id)
   );
UPDATE {job}
SET status = 'completed',
    output = item.output,
    completed_at = {now},
    completed_by = :worker,
    leased_by = NULL,
    leased_until = NULL,
    last_attempt_error = NULL,
    error_code = NULL,
    suspect = 0,
    continued_to = item.next_id
FROM (
    SELECT
        json_extract(value, '$[0]') AS job_id,
        json_extract(value, '$[1]') AS token,
        json_extract(value, '$[2]') AS output,
        json_extract(value, '$[5]') AS next_id
    FROM json_each(:items)
) item
WHERE id = item.job_id
  AND (
      (status = 'running' AND leased_by = :worker AND lease_token = item.token)
      OR (item.token IS NULL AND status IN ('pending', 'running'))
  );

-- name: complete_job
-- params: worker, id, chain_id, token, output, outcome, holder, waited, strict
-- The same for one that ends its chain, in two thirds of the time. `chain_id` and `strict` matter on PostgreSQL only.
INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
SELECT
    id, attempt, coalesce(:worker, :holder), last_attempt_at,
    CASE WHEN :waited IS NOT NULL THEN min(
        strftime('%Y-%m-%dT%H:%M:%f', last_attempt_at, printf('%+.3f seconds', :waited)) || '000Z', {now}
    ) END,
    {now}, :outcome
FROM {job}
WHERE id = :id AND :outcome IS NOT NULL AND :chain_id IS NOT NULL AND :strict IS NOT NULL
  AND (
      (status = 'running' AND leased_by = :worker AND lease_token = :token)
      OR (:token IS NULL AND status IN ('pending', 'running'))
  );
UPDATE {job}
SET status = 'completed',
    output = :output,
    completed_at = {now},
    completed_by = :worker,
    leased_by = NULL,
    leased_until = NULL,
    last_attempt_error = NULL,
    error_code = NULL,
    suspect = 0
WHERE id = :id
  AND (
      (status = 'running' AND leased_by = :worker AND lease_token = :token)
      OR (:token IS NULL AND status IN ('pending', 'running'))
  );
SELECT j.id, j.chain_id, NULL, EXISTS (SELECT 1 FROM {job_blocker} b WHERE b.blocked_by_chain_id = j.chain_id)
FROM {job} j
WHERE j.id = :id AND changes() > 0;

-- name: continue_job
-- params: worker, id, chain_id, token, outcome, holder, waited, strict, next_id, next_type, next_input, next_priority, next_at, next_after, next_max_attempts, next_blockers, next_trace
-- The same for one that continues its chain.
INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
SELECT
    id, attempt, coalesce(:worker, :holder), last_attempt_at,
    CASE WHEN :waited IS NOT NULL THEN min(
        strftime('%Y-%m-%dT%H:%M:%f', last_attempt_at, printf('%+.3f seconds', :waited)) || '000Z', {now}
    ) END,
    {now}, :outcome
FROM {job}
WHERE id = :id AND :outcome IS NOT NULL AND :chain_id IS NOT NULL AND :strict IS NOT NULL
  AND (
      (status = 'running' AND leased_by = :worker AND lease_token = :token)
      OR (:token IS NULL AND status IN ('pending', 'running'))
  );
INSERT INTO {job} (
    id, type_name, chain_id, chain_type_name, chain_index, input, status, priority, created_at, scheduled_at,
    max_attempts, deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context, trace_context
)
SELECT
    :next_id, :next_type, chain_id, chain_type_name, chain_index + 1, :next_input,
    CASE WHEN :next_blockers > 0 THEN 'blocked' ELSE 'pending' END,
    coalesce(:next_priority, priority), {now},
    max(
        {now},
        coalesce(:next_at, strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', :next_after)) || '000Z', {now})
    ),
    :next_max_attempts, deduplication_key, chain_created_at, :next_blockers, :next_blockers, chain_trace_context, :next_trace
FROM {job}
WHERE id = :id
  AND (
      (status = 'running' AND leased_by = :worker AND lease_token = :token)
      OR (:token IS NULL AND status IN ('pending', 'running'))
  );
UPDATE {job}
SET status = 'completed',
    output = NULL,
    completed_at = {now},
    completed_by = :worker,
    leased_by = NULL,
    leased_until = NULL,
    last_attempt_error = NULL,
    error_code = NULL,
    suspect = 0,
    continued_to = :next_id
WHERE id = :id
  AND (
      (status = 'running' AND leased_by = :worker AND lease_token = :token)
      OR (:token IS NULL AND status IN ('pending', 'running'))
  );
SELECT j.id, j.chain_id, j.continued_to, 0
FROM {job} j
WHERE j.id = :id AND changes() > 0;

-- name: release_dependants
-- params: chain_ids
-- Chains have completed: count them down in the jobs that wait for them, and free the jobs that wait for nothing more.
UPDATE {job}
SET open_blockers = open_blockers - waiting.n,
    status = CASE WHEN status = 'blocked' AND open_blockers <= waiting.n THEN 'pending' ELSE status END,
    scheduled_at = CASE
        WHEN status = 'blocked' AND open_blockers <= waiting.n THEN max(scheduled_at, {now})
        ELSE scheduled_at
    END
FROM (
    SELECT b.job_id, count(*) AS n
    FROM json_each(:chain_ids) c
    CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = c.value
    GROUP BY b.job_id
) waiting
WHERE id = waiting.job_id
RETURNING id, type_name, status;
INSERT INTO {job_event} (job_id, event)
SELECT json_extract(value, '$[0]'), 'UNBLOCKED'
FROM json_each(:returned)
WHERE json_extract(value, '$[2]') = 'pending';
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]')
FROM json_each(:returned)
WHERE json_extract(value, '$[2]') = 'pending';

-- name: end_attempts
-- params: items
-- End attempts that did not complete: back to pending, or failed for good. Only where the lease is still the one named.
UPDATE {job}
SET status = item.status,
    scheduled_at = CASE
        WHEN item.status = 'pending' THEN max(
            {now},
            coalesce(
                item.at, strftime('%Y-%m-%dT%H:%M:%f', 'now', printf('%+.3f seconds', item.after)) || '000Z', {now}
            )
        )
        ELSE scheduled_at
    END,
    completed_at = CASE WHEN item.status = 'failed' THEN {now} END,
    attempts_forgiven = attempts_forgiven + item.forgive,
    leased_by = NULL,
    leased_until = NULL,
    lease_token = NULL,
    error_code = item.code,
    last_attempt_error = item.error,
    suspect = (item.status = 'pending' AND item.outcome = 'lost')
FROM (
    SELECT
        json_extract(value, '$.id') AS job_id,
        json_extract(value, '$.worker') AS worker,
        json_extract(value, '$.token') AS token,
        json_extract(value, '$.status') AS status,
        json_extract(value, '$.outcome') AS outcome,
        json_extract(value, '$.code') AS code,
        json_extract(value, '$.error') AS error,
        json_extract(value, '$.at') AS at,
        json_extract(value, '$.after') AS after,
        json_extract(value, '$.forgive') AS forgive
    FROM json_each(:items)
) item
WHERE id = item.job_id AND {job}.status = 'running' AND leased_by = item.worker AND lease_token = item.token
RETURNING id, chain_id, type_name, status, scheduled_at, attempt, last_attempt_at, {now};
WITH ended AS MATERIALIZED (
    SELECT
        json_extract(value, '$[0]') AS id,
        json_extract(value, '$[3]') AS status,
        json_extract(value, '$[4]') AS scheduled_at,
        json_extract(value, '$[5]') AS attempt,
        json_extract(value, '$[6]') AS claimed_at,
        json_extract(value, '$[7]') AS finished_at
    FROM json_each(:returned)
),
item AS MATERIALIZED (
    SELECT
        json_extract(value, '$.id') AS job_id,
        json_extract(value, '$.worker') AS worker,
        json_extract(value, '$.outcome') AS outcome,
        json_extract(value, '$.code') AS code,
        json_extract(value, '$.detail') AS detail,
        json_extract(value, '$.waited') AS waited
    FROM json_each(:items)
)
INSERT INTO {job_attempt} (
    job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome, error_code, error_detail, retry_at
)
SELECT
    ended.id, ended.attempt, item.worker, ended.claimed_at,
    CASE WHEN item.waited IS NOT NULL THEN min(
        strftime('%Y-%m-%dT%H:%M:%f', ended.claimed_at, printf('%+.3f seconds', item.waited)) || '000Z',
        ended.finished_at
    ) END,
    ended.finished_at, item.outcome, item.code, item.detail,
    CASE WHEN ended.status = 'pending' THEN ended.scheduled_at END
FROM ended
JOIN item ON item.job_id = ended.id;
SELECT
    json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), json_extract(value, '$[3]'),
    json_extract(value, '$[4]')
FROM json_each(:returned);

-- name: release_claims
-- params: worker, items
-- Give back jobs that were claimed and not started; the attempt is taken back too.
UPDATE {job}
SET status = 'pending',
    attempt = attempt - 1,
    last_attempt_at = CASE WHEN attempt > 1 THEN last_attempt_at END,
    leased_by = NULL,
    leased_until = NULL,
    lease_token = NULL
FROM (
    SELECT json_extract(value, '$.id') AS job_id, json_extract(value, '$.token') AS token
    FROM json_each(:items)
) item
WHERE id = item.job_id AND status = 'running' AND leased_by = :worker AND lease_token = item.token
RETURNING id, type_name;

-- name: clock
-- params:
-- The database's clock.
SELECT {now};

-- name: lock_expired
-- params: before, limit
-- Leases that had ended by a time, oldest first; a write that changes nothing, to hold the write lock from here on.
UPDATE {job}
SET attempt = attempt
WHERE id IN (
    SELECT j.id
    FROM {job} j
    WHERE j.status = 'running' AND j.leased_until < :before
    ORDER BY j.leased_until
    LIMIT :limit
)
RETURNING {job_columns};
