-- Lists come as JSON. The planner takes each for 100 rows. As long as the tables are small it would rather read a whole table
-- than look up so many, and it keeps to that plan while they grow. `few` is a limit that it cannot see, so that it expects
-- a tenth of the rows; after two of them it expects one, and looks up each by its key.

-- name: claim_jobs
-- params: worker, token, types, levels, suspect, held, window, limit
-- Take due jobs for a worker: the highest priority first, then the longest due.
-- The (type, priority) pairs that have pending jobs are found by jumping from one to the next; each gives a window of
-- candidates in index order, and only the merged winners are locked. `levels` names known pairs and how far each was
-- claimed: starting there steps over the dead index entries that a held snapshot keeps at the head. `types` names
-- the types to look through from the start. Losing a claim in a crash costs a re-run only, so it commits asynchronously.
-- Each window must be read in index order, never sorted: so the upper bound on the time stands outside (the planner would
-- expect few rows of the range, and sort them), and the limit is one it cannot see (it then expects a tenth of the rows).
-- Such limits on types, levels and candidates keep it from expecting so much that it reads the whole table, or compiles the
-- query, which takes a second. The candidates are looked up by key: what must still be true of them is said in such a way that
-- the planner expects it to be, and finds no other index for it.
WITH RECURSIVE fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
),
type AS MATERIALIZED (
    SELECT t.name, t.lease
    FROM json_to_recordset(:types::json) AS t (name text, lease double precision)
    {few}
),
found (type_name, lease, priority) AS (
    SELECT type.name, type.lease, top.priority
    FROM type
    CROSS JOIN LATERAL (
        SELECT j.priority
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = type.name AND j.suspect = :suspect
        ORDER BY j.priority DESC
        LIMIT 1
    ) top
    UNION ALL
    SELECT found.type_name, found.lease, lower.priority
    FROM found
    CROSS JOIN LATERAL (
        SELECT j.priority
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = :suspect
          AND j.priority < found.priority
        ORDER BY j.priority DESC
        LIMIT 1
    ) lower
),
level AS (
    (SELECT found.type_name, found.priority, '-infinity'::timestamptz AS since, found.lease FROM found {few})
    UNION ALL
    (
        SELECT l.type_name, l.priority, l.since, l.lease
        FROM json_to_recordset(:levels::json) AS l (
            type_name text, priority integer, since timestamptz, lease double precision
        )
        {few}
    )
),
candidate AS MATERIALIZED (
    SELECT c.id, c.priority, c.scheduled_at, level.lease
    FROM level
    CROSS JOIN LATERAL (
        SELECT j.id, j.priority, j.scheduled_at
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = level.type_name AND j.suspect = :suspect
          AND j.priority = level.priority
          AND j.scheduled_at >= level.since
          AND j.id NOT IN (SELECT h.id::{id_type} FROM json_array_elements_text(:held::json) AS h (id))
        ORDER BY j.scheduled_at
        LIMIT (SELECT :window::integer)
    ) c
    WHERE c.scheduled_at <= {now}
    ORDER BY c.priority DESC, c.scheduled_at
    LIMIT :window
),
won AS MATERIALIZED (
    SELECT j.id, candidate.lease
    FROM (SELECT * FROM (SELECT * FROM candidate {few}) candidate {few}) candidate
    JOIN {job} j ON j.id = candidate.id
    WHERE j.status::text NOT IN ('blocked', 'running', 'completed', 'failed', 'cancelled')
      AND (j.scheduled_at > {now}) IS NOT TRUE
    ORDER BY candidate.priority DESC, candidate.scheduled_at
    LIMIT :limit
    FOR NO KEY UPDATE OF j SKIP LOCKED
),
claimed AS (
    UPDATE {job} j
    SET status = 'running',
        attempt = j.attempt + 1,
        last_attempt_at = {now},
        leased_by = :worker,
        lease_token = :token,
        leased_until = {now} + make_interval(secs => won.lease),
        heartbeat_at = NULL
    FROM won
    WHERE j.id = won.id
    RETURNING {claimed_columns}
)
SELECT (SELECT count(*) FROM candidate), (SELECT count(*) FROM fast), j.*
FROM (VALUES (1)) one
LEFT JOIN claimed j ON true;

-- name: claim_head
-- params: worker, token, type, lease, held, window, limit
-- Take due jobs from the first few in the line of one type, in the same order: for a worker that has nothing to do and hears of
-- a job. It takes half the time of claim_jobs, and may find nothing where that does: behind as many jobs of a higher priority
-- that are not due yet, or that somebody else has locked.
WITH first AS MATERIALIZED (
    SELECT c.id, c.priority, c.scheduled_at
    FROM (
        SELECT j.id, j.priority, j.scheduled_at
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = :type AND j.suspect = false
          AND j.id NOT IN (SELECT h.id::{id_type} FROM json_array_elements_text(:held::json) AS h (id))
        ORDER BY j.priority DESC, j.scheduled_at
        LIMIT (SELECT :window::integer)
    ) c
    WHERE c.scheduled_at <= {now}
),
won AS MATERIALIZED (
    SELECT j.id
    FROM (SELECT * FROM (SELECT * FROM first {few}) first {few}) first
    JOIN {job} j ON j.id = first.id
    WHERE j.status::text NOT IN ('blocked', 'running', 'completed', 'failed', 'cancelled')
      AND (j.scheduled_at > {now}) IS NOT TRUE
    ORDER BY first.priority DESC, first.scheduled_at
    LIMIT :limit
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE {job} j
SET status = 'running',
    attempt = j.attempt + 1,
    last_attempt_at = {now},
    leased_by = :worker,
    lease_token = :token,
    leased_until = {now} + make_interval(secs => :lease::double precision),
    heartbeat_at = NULL
FROM won
WHERE j.id = won.id AND set_config('synchronous_commit', 'off', true) IS NOT NULL
RETURNING {claimed_columns};

-- name: claimed_with
-- params: worker, token
-- What was claimed with a token, for a claim whose answer was lost. Few jobs run at a time.
SELECT {claimed_columns}
FROM {job} j
WHERE j.status = 'running' AND j.leased_by = :worker AND j.lease_token = :token;

-- name: find_due
-- params: types, suspect, held, limit
-- nothing: claim_jobs finds and takes

-- name: take_due
-- params: worker, token, won, now
-- nothing: claim_jobs finds and takes

-- name: taken_ids
-- params: worker, token, won
-- nothing: claim_jobs tells what it took

-- name: next_due
-- params: types
-- Seconds until the earliest pending job of these types is due; no row where there is none.
WITH RECURSIVE type AS (
    SELECT t.name FROM json_array_elements_text(:types::json) AS t (name)
),
lane AS (
    SELECT type.name, s.suspect FROM type CROSS JOIN (VALUES (false), (true)) AS s (suspect)
),
found (type_name, suspect, priority) AS (
    SELECT lane.name, lane.suspect, top.priority
    FROM lane
    CROSS JOIN LATERAL (
        SELECT j.priority
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = lane.name AND j.suspect = lane.suspect
        ORDER BY j.priority DESC
        LIMIT 1
    ) top
    UNION ALL
    SELECT found.type_name, found.suspect, lower.priority
    FROM found
    CROSS JOIN LATERAL (
        SELECT j.priority
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
          AND j.priority < found.priority
        ORDER BY j.priority DESC
        LIMIT 1
    ) lower
)
SELECT extract(epoch FROM first.scheduled_at - {now})::double precision
FROM found
CROSS JOIN LATERAL (
    SELECT j.scheduled_at
    FROM {job} j
    WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
      AND j.priority = found.priority
    ORDER BY j.scheduled_at
    LIMIT 1
) first
ORDER BY first.scheduled_at
LIMIT 1;

-- name: renew_leases
-- params: worker, items
-- Extend the leases this worker still holds; a row that is locked or no longer its own is not returned.
WITH fast AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
),
item AS MATERIALIZED (
    SELECT *
    FROM (
        SELECT *
        FROM json_to_recordset(:items::json) AS i (id {id_type}, token bigint, lease double precision)
        {few}
    ) i
    {few}
),
held AS MATERIALIZED (
    SELECT j.id, item.lease
    FROM item
    JOIN {job} j ON j.id = item.id
    WHERE j.status = 'running' AND j.leased_by = :worker AND j.lease_token = item.token
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE {job} j
SET leased_until = {now} + make_interval(secs => held.lease),
    heartbeat_at = {now}
FROM held
WHERE j.id = held.id AND (SELECT count(*) FROM fast) > 0
RETURNING j.id;

-- name: lease_states
-- params: ids
-- Who holds these jobs now, and in what state they are.
SELECT j.id, j.status, j.leased_by, j.lease_token
FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
JOIN {job} j ON j.id = i.id::{id_type};

-- name: lock_closing
-- params: ids
-- Lock jobs that are about to close a chain, and the first jobs of those chains, in id order. Whoever is naming such a
-- chain as a blocker at this moment is waited for; the next statement sees the outcome, unless the snapshot is fixed.
SELECT j.id
FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
JOIN {job} j ON j.id = i.id::{id_type}
ORDER BY j.id
FOR UPDATE OF j;

-- name: lock_closing_now
-- params: ids
-- The same without waiting: what somebody else has locked is left out, and so is a chain that somebody's locked job waits
-- for, since counting down in that job would wait. The function in the migration locks in the same way: change both.
WITH free AS MATERIALIZED (
    SELECT j.id
    FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text(:ids::json) AS i (id) {few}) i {few}) i
    JOIN {job} j ON j.id = i.id::{id_type}
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
),
waiting AS MATERIALIZED (
    SELECT free.id AS chain_id, b.job_id
    FROM free
    CROSS JOIN LATERAL (SELECT b.job_id FROM {job_blocker} b WHERE b.blocked_by_chain_id = free.id OFFSET 0) b
    {few}
),
ready AS MATERIALIZED (
    SELECT j.id
    FROM waiting
    JOIN {job} j ON j.id = waiting.job_id
    ORDER BY j.id
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
SELECT free.id
FROM free
WHERE free.id NOT IN (SELECT waiting.chain_id FROM waiting WHERE waiting.job_id NOT IN (SELECT ready.id FROM ready));

-- name: complete_jobs
-- params: worker, items, closing, going_on, wait
-- Complete jobs, insert their continuations, and release what waited for chains that end. A job whose lease is no longer held
-- is not returned, and nothing is written for it. Each row is a job that is done, or locked by somebody, or freed. It is a
-- function (see the migration): several statements, each of which must see what was committed before it, in one round trip.
SELECT c.what, c.id, c.chain_id, c.next_id, c.type_name, c.fixed_snapshot
FROM {complete}(:worker::text, :items::json, :closing::json, :going_on::json, :wait) c;

-- name: complete_job
-- params: worker, id, chain_id, token, output, outcome, holder, waited, strict
-- The same for one that ends its chain, in half the time.
SELECT c.what, c.id, c.chain_id, c.next_id, c.type_name, c.fixed_snapshot
FROM {complete_one}(
    :worker::text, :id::{id_type}, :chain_id::{id_type}, :token::bigint, :output::text, :outcome::text, :holder::text,
    :waited::double precision, :strict::boolean, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
) c;

-- name: continue_job
-- params: worker, id, chain_id, token, outcome, holder, waited, strict, next_id, next_type, next_input, next_priority, next_at, next_after, next_max_attempts, next_blockers, next_trace
-- The same for one that continues its chain.
SELECT c.what, c.id, c.chain_id, c.next_id, c.type_name, c.fixed_snapshot
FROM {complete_one}(
    :worker::text, :id::{id_type}, :chain_id::{id_type}, :token::bigint, NULL, :outcome::text, :holder::text,
    :waited::double precision, :strict::boolean, :next_id::{id_type}, :next_type::text, :next_input::text,
    :next_priority::integer, :next_at::timestamptz, :next_after::double precision, :next_max_attempts::integer,
    :next_blockers::integer, :next_trace::text
) c;

-- name: release_dependants
-- params: chain_ids
-- nothing: complete_jobs has done it

-- name: end_attempts
-- params: items
-- End attempts that did not complete: back to pending, or failed for good. Only where the lease is still the one named.
WITH item AS MATERIALIZED (
    SELECT *
    FROM (
        SELECT *
        FROM json_to_recordset(:items::json) AS i (
            id {id_type}, worker text, token bigint, status text, outcome text, code text, detail text, error text,
            at timestamptz, after double precision, forgive integer, waited double precision
    )
        {few}
    ) i
    {few}
),
locked AS MATERIALIZED (
    SELECT j.id
    FROM item
    JOIN {job} j ON j.id = item.id
    WHERE j.status = 'running' AND j.leased_by = item.worker AND j.lease_token = item.token
    ORDER BY j.id
    FOR NO KEY UPDATE OF j
),
ended AS (
    UPDATE {job} j
    SET status = item.status::{job_status},
        scheduled_at = CASE
            WHEN item.status = 'pending'
                THEN greatest({now}, coalesce(item.at, {now} + make_interval(secs => item.after)))
            ELSE j.scheduled_at
        END,
        completed_at = CASE WHEN item.status = 'failed' THEN {now} END,
        attempts_forgiven = j.attempts_forgiven + item.forgive,
        leased_by = NULL,
        leased_until = NULL,
        lease_token = NULL,
        error_code = item.code,
        last_attempt_error = item.error,
        suspect = (item.status = 'pending' AND item.outcome = 'lost')
    FROM item
    JOIN locked ON locked.id = item.id
    WHERE j.id = item.id AND j.status = 'running' AND j.leased_by = item.worker AND j.lease_token = item.token
    RETURNING
        j.id, j.chain_id, j.type_name, j.status, j.scheduled_at, j.attempt, j.last_attempt_at,
        item.worker, item.outcome, item.code, item.detail, item.waited
),
attempt AS (
    INSERT INTO {job_attempt} (
        job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome, error_code, error_detail, retry_at
    )
    SELECT
        ended.id, ended.attempt, ended.worker, ended.last_attempt_at,
        CASE WHEN ended.waited IS NOT NULL
            THEN least(ended.last_attempt_at + make_interval(secs => ended.waited), {now}) END,
        {now}, ended.outcome, ended.code, ended.detail,
        CASE WHEN ended.status = 'pending' THEN ended.scheduled_at END
    FROM ended
)
SELECT ended.id, ended.chain_id, ended.type_name, ended.status, ended.scheduled_at FROM ended;

-- name: release_claims
-- params: worker, items
-- Give back jobs that were claimed and not started; the attempt is taken back too.
WITH item AS MATERIALIZED (
    SELECT *
    FROM (
        SELECT * FROM json_to_recordset(:items::json) AS i (id {id_type}, token bigint) {few}
    ) i
    {few}
),
locked AS MATERIALIZED (
    SELECT j.id
    FROM item
    JOIN {job} j ON j.id = item.id
    WHERE j.status = 'running' AND j.leased_by = :worker AND j.lease_token = item.token
    ORDER BY j.id
    FOR NO KEY UPDATE OF j
)
UPDATE {job} j
SET status = 'pending',
    attempt = j.attempt - 1,
    last_attempt_at = CASE WHEN j.attempt > 1 THEN j.last_attempt_at END,
    leased_by = NULL,
    leased_until = NULL,
    lease_token = NULL
FROM locked
WHERE j.id = locked.id
RETURNING j.id, j.type_name;

-- name: clock
-- params:
-- The database's clock.
SELECT {now};

-- name: lock_expired
-- params: before, limit
-- Leases that had ended by a time, oldest first. One whose row is locked is being renewed or completed: left alone.
SELECT {j_columns}
FROM {job} j
WHERE j.status = 'running' AND j.leased_until < :before::timestamptz
ORDER BY j.leased_until
LIMIT :limit
FOR NO KEY UPDATE SKIP LOCKED;
