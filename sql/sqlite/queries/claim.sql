-- name: _paused
-- The names of the types that are paused now, an empty one for everything: read once a statement, and almost always empty.
(SELECT p.name FROM {pause} p WHERE p.kind = 'type' AND (p.until IS NULL OR p.until > {now}));

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
            {now + json_extract(value, '$.lease') seconds},
            (
                SELECT j.priority
                FROM {job} j
                WHERE j.status = 'pending' AND j.type_name = json_extract(value, '$.name') AND j.suspect = :suspect
                ORDER BY j.priority DESC
                LIMIT 1
            )
        FROM json_each(:types)
        WHERE '' NOT IN {_paused} AND json_extract(value, '$.name') NOT IN {_paused}
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
-- Claim what find_due has found, except what another process has changed or paused since. Two statements that commit by themselves let
-- other threads in less often than a transaction would.
UPDATE {job}
SET status = 'running',
    attempt = min(attempt, 2147483646) + 1,
    last_attempt_at = :now,
    leased_by = :worker,
    lease_token = :token,
    leased_until = json_extract(won.value, '$[1]'),
    heartbeat_at = NULL
FROM json_each(:won) won
WHERE {job}.rowid = json_extract(won.value, '$[0]')
  AND status = 'pending' AND attempt = json_extract(won.value, '$[2]') AND scheduled_at <= :now
  AND '' NOT IN {_paused} AND type_name NOT IN {_paused};

-- name: taken_ids
-- params: worker, token, won
-- Which of them were claimed, where not all of them were.
SELECT j.id
FROM json_each(:won) won
CROSS JOIN {job} j ON j.rowid = json_extract(won.value, '$[0]')
WHERE j.status = 'running' AND j.leased_by = :worker AND j.lease_token = :token;

-- name: next_due
-- params: types
-- Seconds until the earliest pending job of these types can be claimed: it is due, and no pause holds it. No row where there is none.
WITH RECURSIVE found (type_name, suspect, until, priority) AS (
    SELECT
        t.value,
        s.value,
        (
            SELECT max(coalesce(p.until, 'infinity'))
            FROM {pause} p
            WHERE p.kind = 'type' AND p.name IN ('', t.value) AND (p.until IS NULL OR p.until > {now})
        ),
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
        found.until,
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
    SELECT max(coalesce(found.until, ''), (
        SELECT j.scheduled_at
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
          AND j.priority = found.priority
        ORDER BY j.scheduled_at
        LIMIT 1
    )) AS at
    FROM found
    WHERE found.priority IS NOT NULL AND found.until IS NOT 'infinity'
) first
WHERE first.at IS NOT NULL
ORDER BY first.at
LIMIT 1;

-- name: release_claims
-- params: worker, items
-- Give back jobs that were claimed and not started; the attempt is taken back too.
UPDATE {job} AS j
SET status = 'pending',
    attempt = j.attempt - 1,
    last_attempt_at = CASE WHEN j.attempt > 1 THEN j.last_attempt_at END,
    leased_by = NULL,
    leased_until = NULL,
    lease_token = NULL
FROM (
    SELECT :worker AS worker, json_extract(value, '$.id') AS id, json_extract(value, '$.token') AS token
    FROM json_each(:items)
) item
WHERE j.id = item.id AND {fence}
RETURNING id, type_name;
