-- name: count_jobs
-- params: types, statuses, limit
-- How many jobs of each type and status, up to a limit for each.
SELECT type.name, state.name, (
    SELECT count(*)
    FROM (
        SELECT 1
        FROM {job} j
        WHERE j.type_name = type.name AND j.status = state.name::{job_status}
        LIMIT :limit
    ) counted
)
FROM unnest(:types::text[]) AS type (name)
CROSS JOIN unnest(:statuses::text[]) AS state (name);

-- name: count_attempts
-- params: types, statuses, limit
-- How many jobs of each type have been tried how often, looking at a limited number of jobs of each type and status.
SELECT type.name, counted.attempt, count(*)
FROM unnest(:types::text[]) AS type (name)
CROSS JOIN unnest(:statuses::text[]) AS state (name)
CROSS JOIN LATERAL (
    SELECT j.attempt
    FROM {job} j
    WHERE j.type_name = type.name AND j.status = state.name::{job_status}
    ORDER BY j.created_at
    LIMIT :limit
) counted
GROUP BY type.name, counted.attempt;

-- name: count_retries
-- params: types, limit
-- How many jobs of each type are to be tried again after how many attempts, looking at a limited number of each type.
SELECT type.name, counted.attempt, count(*)
FROM unnest(:types::text[]) AS type (name)
CROSS JOIN LATERAL (
    SELECT j.attempt
    FROM {job} j
    WHERE j.type_name = type.name AND j.status = 'pending' AND j.attempt > 0
    ORDER BY j.attempt
    LIMIT :limit
) counted
GROUP BY type.name, counted.attempt;

-- name: count_errors
-- params: types, limit
-- How many jobs carry each error code now, up to a limit for each code, with one of them and their types: the
-- most frequent first.
-- The codes are found by jumping from one to the next in the index.
WITH RECURSIVE code (name) AS (
    (SELECT j.error_code FROM {job} j WHERE j.error_code IS NOT NULL ORDER BY j.error_code LIMIT 1)
    UNION ALL
    SELECT (SELECT j.error_code FROM {job} j WHERE j.error_code > code.name ORDER BY j.error_code LIMIT 1)
    FROM code
    WHERE code.name IS NOT NULL
)
SELECT code.name, counted.number, (
    SELECT j.id
    FROM unnest(:types::text[]) AS type (name)
    CROSS JOIN LATERAL (
        SELECT j.id
        FROM {job} j
        WHERE j.error_code = code.name AND j.type_name = type.name
        ORDER BY j.error_code, j.type_name
        LIMIT 1
    ) j
    LIMIT 1
), ARRAY(
    SELECT type.name
    FROM unnest(:types::text[]) AS type (name)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM {job} j
        WHERE j.error_code = code.name AND j.type_name = type.name
        ORDER BY j.error_code, j.type_name
        LIMIT 1
    ) j
    ORDER BY type.name
)
FROM code
CROSS JOIN LATERAL (
    SELECT count(*) AS number
    FROM (
        SELECT 1
        FROM unnest(:types::text[]) AS type (name)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM {job} j
            WHERE j.error_code = code.name AND j.type_name = type.name
            ORDER BY j.error_code, j.type_name
            LIMIT :limit
        ) j
        LIMIT :limit
    ) jobs
) counted
WHERE code.name IS NOT NULL AND counted.number > 0
ORDER BY counted.number DESC, code.name;

-- name: count_stranded
-- params: types, limit
-- How many jobs are blocked by a chain that failed or was cancelled, or though all that they wait for has completed, looking at
-- a limited number of blocked jobs of each type: the oldest, since the others still move.
SELECT count(*)
FROM unnest(:types::text[]) AS type (name)
CROSS JOIN LATERAL (
    SELECT j.id
    FROM {job} j
    WHERE j.type_name = type.name AND j.status = 'blocked'
    ORDER BY j.created_at, j.id
    LIMIT :limit
) j
CROSS JOIN LATERAL (
    SELECT 1
    FROM {job_blocker} b
    CROSS JOIN LATERAL (
        SELECT t.status FROM {job} t WHERE t.chain_id = b.blocked_by_chain_id ORDER BY t.chain_index DESC LIMIT 1
    ) t
    WHERE b.job_id = j.id
    HAVING count(*) FILTER (WHERE t.status <> 'completed') = 0
        OR (
            count(*) FILTER (WHERE t.status IN ('failed', 'cancelled')) > 0
            AND (SELECT w.blockers_until FROM {job} w WHERE w.id = j.id) = 'completed'
        )
) stranded;

-- name: longest_running
-- params: types, limit
-- The running jobs that were started first: how long ago, when they were last heard of (the claim is the first sign of life) and how
-- long ago that was, and for how long their lease still lasts, in seconds.
SELECT
    j.id, j.type_name, j.leased_by, coalesce(j.heartbeat_at, j.last_attempt_at), j.attempt,
    extract(epoch FROM {now} - j.last_attempt_at)::double precision,
    extract(epoch FROM {now} - coalesce(j.heartbeat_at, j.last_attempt_at))::double precision,
    extract(epoch FROM j.leased_until - {now})::double precision
FROM {job} j
WHERE j.status = 'running'
  AND j.type_name = ANY (:types::text[])
ORDER BY j.last_attempt_at
LIMIT :limit;

-- name: ready_by_type
-- params: types, limit
-- For each type with jobs that are due: how many, up to a limit for each priority, and for how many seconds the oldest has been.
WITH RECURSIVE type AS (
    SELECT t.name FROM unnest(:types::text[]) AS t (name)
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
SELECT found.type_name, sum(due.number)::bigint, max(extract(epoch FROM {now} - due.first))::double precision
FROM found
CROSS JOIN LATERAL (
    SELECT count(*) AS number, min(first.scheduled_at) AS first
    FROM (
        SELECT j.scheduled_at
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
          AND j.priority = found.priority AND j.scheduled_at <= {now}
        ORDER BY j.scheduled_at
        LIMIT :limit
    ) first
) due
WHERE due.number > 0
GROUP BY found.type_name;

-- name: count_expired
-- params: limit
-- How many running jobs have a lease that has ended, up to a limit.
SELECT count(*)
FROM (SELECT 1 FROM {job} j WHERE j.status = 'running' AND j.leased_until < {now} LIMIT :limit) expired;

-- name: stranded_jobs
-- params: types, limit, most
-- Some of the jobs that are blocked by a chain that failed or was cancelled, or though all that they wait for has completed, looking at
-- a limited number of blocked jobs of each type: the oldest, since the others still move.
SELECT j.id
FROM unnest(:types::text[]) AS type (name)
CROSS JOIN LATERAL (
    SELECT j.id
    FROM {job} j
    WHERE j.type_name = type.name AND j.status = 'blocked'
    ORDER BY j.created_at, j.id
    LIMIT :limit
) j
CROSS JOIN LATERAL (
    SELECT 1
    FROM {job_blocker} b
    CROSS JOIN LATERAL (
        SELECT t.status FROM {job} t WHERE t.chain_id = b.blocked_by_chain_id ORDER BY t.chain_index DESC LIMIT 1
    ) t
    WHERE b.job_id = j.id
    HAVING count(*) FILTER (WHERE t.status <> 'completed') = 0
        OR (
            count(*) FILTER (WHERE t.status IN ('failed', 'cancelled')) > 0
            AND (SELECT w.blockers_until FROM {job} w WHERE w.id = j.id) = 'completed'
        )
) stranded
LIMIT :most;

-- name: running_order
-- params:
-- The running jobs of each worker in the order in which it starts them. At most as many run as it has slots: the others wait.
SELECT j.leased_by, j.id, j.type_name
FROM {job} j
WHERE j.status = 'running'
ORDER BY j.leased_by, j.last_attempt_at, j.priority DESC, j.scheduled_at, j.id;

-- name: count_due
-- params: types, limit
-- For each type that has pending jobs: how many are due and how many are not yet, up to a limit for each priority, and for how many
-- seconds the oldest has been due. Paused ones count too.
WITH RECURSIVE lane AS (
    SELECT t.name, s.suspect
    FROM unnest(:types::text[]) AS t (name)
    CROSS JOIN (VALUES (false), (true)) AS s (suspect)
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
SELECT
    found.type_name, sum(due.number)::bigint, sum(later.number)::bigint,
    extract(epoch FROM {now} - min(due.oldest))::double precision
FROM found
CROSS JOIN LATERAL (
    SELECT count(*) AS number, min(j.scheduled_at) AS oldest
    FROM (
        SELECT j.scheduled_at
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
          AND j.priority = found.priority AND j.scheduled_at <= {now}
        ORDER BY j.scheduled_at
        LIMIT :limit
    ) j
) due
CROSS JOIN LATERAL (
    SELECT count(*) AS number
    FROM (
        SELECT 1
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
          AND j.priority = found.priority AND j.scheduled_at > {now}
        ORDER BY j.scheduled_at
        LIMIT :limit
    ) j
) later
GROUP BY found.type_name;

-- name: count_backing_off
-- params: types, limit
-- How many jobs of each type were tried before and are not due yet, looking at a limited number of each type.
SELECT type.name, count(*)
FROM unnest(:types::text[]) AS type (name)
CROSS JOIN LATERAL (
    SELECT j.scheduled_at
    FROM {job} j
    WHERE j.type_name = type.name AND j.status = 'pending' AND j.attempt > 0
    ORDER BY j.attempt
    LIMIT :limit
) counted
WHERE counted.scheduled_at > {now}
GROUP BY type.name;

-- name: list_rates
-- params: types
-- What workers have completed and what failed in the last minute and in the last hour, by type.
SELECT
    r.type_name,
    coalesce(sum(r.completed) FILTER (WHERE r.part = 0 AND r.at > {now - 60 seconds}), 0)::bigint,
    coalesce(sum(r.failed) FILTER (WHERE r.part = 0 AND r.at > {now - 60 seconds}), 0)::bigint,
    coalesce(sum(r.completed) FILTER (WHERE r.part > 0 AND r.at > {now - 3600 seconds}), 0)::bigint,
    coalesce(sum(r.failed) FILTER (WHERE r.part > 0 AND r.at > {now - 3600 seconds}), 0)::bigint
FROM {worker_rate} r
WHERE r.type_name = ANY (:types::text[])
GROUP BY r.type_name;

-- name: rates_by_age
-- params:
-- What workers have completed and what failed in each five minutes of the last hour, counted back from now.
SELECT floor(extract(epoch FROM {now} - r.at) / 300)::integer AS age, sum(r.completed)::bigint, sum(r.failed)::bigint
FROM {worker_rate} r
WHERE r.part > 0 AND r.at > {now - 3600 seconds}
GROUP BY age;

-- name: count_arrivals
-- params: types, statuses, limit
-- How many jobs of each type were created in each ten seconds of the last thirty, counted back from now, each up to a limit for a
-- type and state.
SELECT type.name, span.age, count(*)
FROM unnest(:types::text[]) AS type (name)
CROSS JOIN unnest(:statuses::text[]) AS state (name)
CROSS JOIN (VALUES (0), (1), (2)) AS span (age)
CROSS JOIN LATERAL (
    SELECT 1
    FROM {job} j
    WHERE j.type_name = type.name
      AND j.status = state.name::{job_status}
      AND j.created_at > {now} - make_interval(secs => 10 * (span.age + 1))
      AND j.created_at <= {now} - make_interval(secs => 10 * span.age)
    LIMIT :limit
) arrived
GROUP BY type.name, span.age;
