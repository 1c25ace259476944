-- name: count_jobs
-- params: types, statuses, limit
-- How many jobs of each type and status, up to a limit for each.
SELECT type.value, state.value, (
    SELECT count(*)
    FROM (
        SELECT 1
        FROM {job} j
        WHERE j.type_name = type.value AND j.status = state.value
        LIMIT :limit
    ) counted
)
FROM json_each(:types) type
CROSS JOIN json_each(:statuses) state;

-- name: count_attempts
-- params: types, statuses, limit
-- How many jobs of each type have been tried how often, looking at a limited number of jobs of each type and status.
SELECT type.value, CAST(counted.key AS INTEGER), sum(counted.value)
FROM json_each(:types) type
CROSS JOIN json_each(:statuses) state
CROSS JOIN json_each((
    SELECT json_group_object(tried.attempt, tried.number)
    FROM (
        SELECT j.attempt, count(*) AS number
        FROM (SELECT i.attempt FROM {job} i WHERE i.type_name = type.value AND i.status = state.value LIMIT :limit) j
        GROUP BY j.attempt
    ) tried
)) counted
GROUP BY type.value, counted.key;

-- name: count_retries
-- params: types, limit
-- How many jobs of each type are to be tried again after how many attempts, looking at a limited number of each type.
SELECT type.value, CAST(counted.key AS INTEGER), counted.value
FROM json_each(:types) type
CROSS JOIN json_each((
    SELECT json_group_object(tried.attempt, tried.number)
    FROM (
        SELECT j.attempt, count(*) AS number
        FROM (
            SELECT i.attempt
            FROM {job} i
            WHERE i.type_name = type.value AND i.status = 'pending' AND i.attempt > 0
            ORDER BY i.attempt
            LIMIT :limit
        ) j
        GROUP BY j.attempt
    ) tried
)) counted;

-- name: count_errors
-- params: types, limit
-- How many jobs carry each error code now, up to a limit for each code, with one of them and their types: the
-- most frequent first.
-- The codes are found by jumping from one to the next in the index.
WITH RECURSIVE code (name) AS (
    SELECT min(j.error_code) FROM {job} j WHERE j.error_code IS NOT NULL
    UNION ALL
    SELECT (SELECT min(j.error_code) FROM {job} j WHERE j.error_code > code.name)
    FROM code
    WHERE code.name IS NOT NULL
)
SELECT
    code.name,
    (
        SELECT count(*)
        FROM (
            SELECT 1
            FROM json_each(:types) type
            CROSS JOIN {job} j ON j.error_code = code.name AND j.type_name = type.value
            LIMIT :limit
        )
    ) AS number,
    (
        SELECT j.id
        FROM json_each(:types) type
        CROSS JOIN {job} j ON j.error_code = code.name AND j.type_name = type.value
        LIMIT 1
    ),
    (
        SELECT json_group_array(type.value)
        FROM json_each(:types) type
        WHERE EXISTS (SELECT 1 FROM {job} j WHERE j.error_code = code.name AND j.type_name = type.value)
    )
FROM code
WHERE code.name IS NOT NULL AND number > 0
ORDER BY number DESC, code.name;

-- name: count_stranded
-- params: types, limit
-- How many jobs are blocked by a chain that failed or was cancelled, or though all that they wait for has completed, looking at
-- a limited number of blocked jobs of each type: the oldest, since the others still move.
SELECT count(*)
FROM json_each(:types) type
CROSS JOIN {job} j ON j.rowid IN (
    SELECT i.rowid
    FROM {job} i
    WHERE i.type_name = type.value AND i.status = 'blocked'
    ORDER BY i.created_at, i.id
    LIMIT :limit
)
WHERE (
    SELECT count(*) FILTER (WHERE t.status <> 'completed') = 0
        OR (j.blockers_until = 'completed' AND count(*) FILTER (WHERE t.status IN ('failed', 'cancelled')) > 0)
    FROM {job_blocker} b
    JOIN {job} t ON t.id = (
        SELECT l.id FROM {job} l WHERE l.chain_id = b.blocked_by_chain_id ORDER BY l.chain_index DESC LIMIT 1
    )
    WHERE b.job_id = j.id
);

-- name: longest_running
-- params: types, limit
-- The running jobs that were started first: how long ago, when they were last heard of (the claim is the first sign of life) and how
-- long ago that was, and for how long their lease still lasts, in seconds.
SELECT
    j.id, j.type_name, j.leased_by, coalesce(j.heartbeat_at, j.last_attempt_at), j.attempt,
    (julianday({now}) - julianday(j.last_attempt_at)) * 86400.0,
    (julianday({now}) - julianday(coalesce(j.heartbeat_at, j.last_attempt_at))) * 86400.0,
    (julianday(j.leased_until) - julianday({now})) * 86400.0
FROM {job} j
WHERE j.status = 'running'
  AND j.type_name IN (SELECT t.value FROM json_each(:types) t)
ORDER BY j.last_attempt_at
LIMIT :limit;

-- name: ready_by_type
-- params: types, limit
-- For each type with jobs that are due: how many, up to a limit for each priority, and for how many seconds the oldest has been.
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
SELECT
    found.type_name,
    sum((
        SELECT count(*)
        FROM (
            SELECT 1
            FROM {job} j
            WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
              AND j.priority = found.priority AND j.scheduled_at <= {now}
            ORDER BY j.scheduled_at
            LIMIT :limit
        )
    )) AS number,
    max((
        SELECT (julianday({now}) - julianday(j.scheduled_at)) * 86400.0
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
          AND j.priority = found.priority AND j.scheduled_at <= {now}
        ORDER BY j.scheduled_at
        LIMIT 1
    ))
FROM found
WHERE found.priority IS NOT NULL
GROUP BY found.type_name
HAVING number > 0;

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
FROM json_each(:types) type
CROSS JOIN {job} j ON j.rowid IN (
    SELECT i.rowid
    FROM {job} i
    WHERE i.type_name = type.value AND i.status = 'blocked'
    ORDER BY i.created_at, i.id
    LIMIT :limit
)
WHERE (
    SELECT count(*) FILTER (WHERE t.status <> 'completed') = 0
        OR (j.blockers_until = 'completed' AND count(*) FILTER (WHERE t.status IN ('failed', 'cancelled')) > 0)
    FROM {job_blocker} b
    JOIN {job} t ON t.id = (
        SELECT l.id FROM {job} l WHERE l.chain_id = b.blocked_by_chain_id ORDER BY l.chain_index DESC LIMIT 1
    )
    WHERE b.job_id = j.id
)
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
SELECT
    level.type_name, sum(level.due), sum(level.later),
    (julianday({now}) - julianday(min(level.oldest))) * 86400.0
FROM (
    SELECT
        found.type_name,
        (
            SELECT count(*)
            FROM (
                SELECT 1
                FROM {job} j
                WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
                  AND j.priority = found.priority AND j.scheduled_at <= {now}
                LIMIT :limit
            )
        ) AS due,
        (
            SELECT count(*)
            FROM (
                SELECT 1
                FROM {job} j
                WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
                  AND j.priority = found.priority AND j.scheduled_at > {now}
                LIMIT :limit
            )
        ) AS later,
        (
            SELECT j.scheduled_at
            FROM {job} j
            WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
              AND j.priority = found.priority AND j.scheduled_at <= {now}
            ORDER BY j.scheduled_at
            LIMIT 1
        ) AS oldest
    FROM found
    WHERE found.priority IS NOT NULL
) level
GROUP BY level.type_name;

-- name: count_backing_off
-- params: types, limit
-- How many jobs of each type were tried before and are not due yet, looking at a limited number of each type.
SELECT type.value, (
    SELECT count(*)
    FROM (
        SELECT j.scheduled_at
        FROM {job} j
        WHERE j.type_name = type.value AND j.status = 'pending' AND j.attempt > 0
        ORDER BY j.attempt
        LIMIT :limit
    ) counted
    WHERE counted.scheduled_at > {now}
)
FROM json_each(:types) type;

-- name: list_rates
-- params: types
-- What workers have completed and what failed in the last minute and in the last hour, by type.
SELECT
    r.type_name,
    coalesce(sum(r.completed) FILTER (WHERE r.part = 0 AND r.at > {now - 60 seconds}), 0),
    coalesce(sum(r.failed) FILTER (WHERE r.part = 0 AND r.at > {now - 60 seconds}), 0),
    coalesce(sum(r.completed) FILTER (WHERE r.part > 0 AND r.at > {now - 3600 seconds}), 0),
    coalesce(sum(r.failed) FILTER (WHERE r.part > 0 AND r.at > {now - 3600 seconds}), 0)
FROM {worker_rate} r
WHERE r.type_name IN (SELECT t.value FROM json_each(:types) t)
GROUP BY r.type_name;

-- name: rates_by_age
-- params:
-- What workers have completed and what failed in each five minutes of the last hour, counted back from now.
SELECT CAST((julianday({now}) - julianday(r.at)) * 288 AS INTEGER) AS age, sum(r.completed), sum(r.failed)
FROM {worker_rate} r
WHERE r.part > 0 AND r.at > {now - 3600 seconds}
GROUP BY age;

-- name: count_arrivals
-- params: types, statuses, limit
-- How many jobs of each type were created in each ten seconds of the last thirty, counted back from now, each up to a limit for a
-- type and state.
SELECT type.value, span.value, sum((
    SELECT count(*)
    FROM (
        SELECT 1
        FROM {job} j
        WHERE j.type_name = type.value
          AND j.status = state.value
          AND j.created_at > {now - 10 * (span.value + 1) seconds}
          AND j.created_at <= {now - 10 * span.value seconds}
        LIMIT :limit
    )
))
FROM json_each(:types) type
CROSS JOIN json_each(:statuses) state
CROSS JOIN json_each('[0, 1, 2]') span
GROUP BY type.value, span.value;
