-- name: waiting_keys
-- params: type, suspect, after_name, after_key, window
-- The limits and keys that have jobs of a type waiting, after a given one, with each priority and when its first job is due: by
-- jumping from one to the next, so that a key with a million jobs costs as much as one with ten.
WITH RECURSIVE found (limit_name, limit_key, priority, scheduled_at, number) AS (
    (
        SELECT j.limit_name, j.limit_key, j.priority, j.scheduled_at, 1
        FROM {job} j
        WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = :type AND j.suspect = :suspect
          AND (j.limit_name, j.limit_key) > (:after_name::text, :after_key::text)
          AND NOT ARRAY[:type, ''] && {_paused}
        ORDER BY j.limit_name, j.limit_key, j.priority DESC, j.scheduled_at
        LIMIT 1
    )
    UNION ALL
    SELECT next.limit_name, next.limit_key, next.priority, next.scheduled_at, found.number + 1
    FROM found
    CROSS JOIN LATERAL (
        (
            SELECT j.limit_name, j.limit_key, j.priority, j.scheduled_at
            FROM {job} j
            WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = :type AND j.suspect = :suspect
              AND j.limit_name = found.limit_name AND j.limit_key = found.limit_key AND j.priority < found.priority
            ORDER BY j.priority DESC, j.scheduled_at
            LIMIT 1
        )
        UNION ALL
        (
            SELECT j.limit_name, j.limit_key, j.priority, j.scheduled_at
            FROM {job} j
            WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = :type AND j.suspect = :suspect
              AND (j.limit_name, j.limit_key) > (found.limit_name, found.limit_key)
            ORDER BY j.limit_name, j.limit_key, j.priority DESC, j.scheduled_at
            LIMIT 1
        )
        LIMIT 1
    ) next
    WHERE found.number < :window
)
SELECT found.limit_name, found.limit_key, found.priority, found.scheduled_at <= {now} FROM found;

-- name: make_limit_keys
-- params: items
-- Make the rows of keys that have none yet.
INSERT INTO {limit_key} (limit_name, limit_key)
SELECT i.name, i.key
FROM json_to_recordset(:items::json) AS i (name text, key text)
WHERE NOT EXISTS (SELECT 1 FROM {limit_key} k WHERE k.limit_name = i.name AND k.limit_key = i.key)
ORDER BY i.name, i.key
ON CONFLICT (limit_name, limit_key) DO NOTHING;

-- name: lock_limit_keys
-- params: items
-- Lock the rows of keys, in order. What runs of them is counted by a later statement, which sees what the wait was for. Losing a
-- claim in a crash costs a re-run only, so it commits asynchronously.
SELECT k.limit_name, k.limit_key, set_config('synchronous_commit', 'off', true)
FROM json_to_recordset(:items::json) AS i (name text, key text)
JOIN {limit_key} k ON k.limit_name = i.name AND k.limit_key = i.key
ORDER BY k.limit_name, k.limit_key
FOR NO KEY UPDATE OF k;

-- name: look_at_keys
-- params: items
-- What stands in the way of keys: how many of each run; what an operator has set; how far its rate is used
-- up; until when it is held; where its jobs run in order, the first that is open, if it is due. And the time.
SELECT
    i.name, i.key, {now}, running.number, l.concurrency, l.rate, l.per, l.burst, k.used_until, k.held_until, head.id
FROM json_to_recordset(:items::json) AS i (name text, key text, strict boolean)
LEFT JOIN {limit_key} k ON k.limit_name = i.name AND k.limit_key = i.key
LEFT JOIN {limit} l ON l.name = i.name
CROSS JOIN LATERAL (
    SELECT count(*) AS number
    FROM {job} j
    WHERE j.status = 'running' AND j.limit_name IS NOT NULL AND j.limit_name = i.name AND j.limit_key = i.key
) running
LEFT JOIN LATERAL (
    SELECT CASE WHEN j.status = 'pending' AND j.scheduled_at <= {now} THEN j.id END AS id
    FROM {job} j
    WHERE i.strict AND j.limit_at IS NOT NULL AND j.status IN ('blocked', 'pending', 'running')
      AND j.limit_name = i.name AND j.limit_key = i.key
    ORDER BY j.limit_at, j.id
    LIMIT 1
) head ON true;

-- name: claim_limited
-- params: worker, token, levels, heads, suspect, held, limit
-- Take due jobs of keys that are locked and have room: up to `room` of each key, and the keys take turns. `heads` are the first
-- jobs of keys whose jobs run in order.
WITH level AS MATERIALIZED (
    SELECT *
    FROM (
        SELECT *
        FROM json_to_recordset(:levels::json) AS l (
            type text, name text, key text, priority integer, room integer, lease double precision
        )
        {few}
    ) l
    {few}
),
candidate AS MATERIALIZED (
    SELECT c.id, level.name, level.key, level.priority, c.scheduled_at, level.lease, level.room
    FROM level
    CROSS JOIN LATERAL (
        SELECT j.id, j.scheduled_at
        FROM {job} j
        WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = level.type AND j.suspect = :suspect
          AND j.limit_name = level.name AND j.limit_key = level.key AND j.priority = level.priority
          AND j.scheduled_at <= {now}
          AND j.id <> ALL (:held::{id_type}[])
        ORDER BY j.limit_name, j.limit_key, j.priority DESC, j.scheduled_at
        LIMIT level.room
    ) c
    WHERE NOT ARRAY[level.type, ''] && {_paused}
    UNION ALL
    SELECT h.id, h.name, h.key, 0, {now}, h.lease, 1
    FROM json_to_recordset(:heads::json) AS h (id {id_type}, name text, key text, type text, lease double precision)
    WHERE NOT ARRAY[h.type, ''] && {_paused} AND h.id <> ALL (:held::{id_type}[])
),
turn AS MATERIALIZED (
    SELECT c.id, c.lease, c.room, c.number, c.priority, c.scheduled_at
    FROM (
        SELECT
            candidate.*,
            row_number() OVER (
                PARTITION BY candidate.name, candidate.key ORDER BY candidate.priority DESC, candidate.scheduled_at
            ) AS number
        FROM candidate
    ) c
    WHERE c.number <= c.room
    ORDER BY c.number, c.priority DESC, c.scheduled_at
    LIMIT :limit
),
won AS MATERIALIZED (
    SELECT j.id, turn.lease
    FROM (SELECT * FROM (SELECT * FROM turn {few}) turn {few}) turn
    JOIN {job} j ON j.id = turn.id
    WHERE j.status::text NOT IN ('blocked', 'running', 'completed', 'failed', 'cancelled')
      AND (j.scheduled_at > {now}) IS NOT TRUE
      AND j.suspect = :suspect
    FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE {job} j
SET status = 'running',
    attempt = j.attempt + 1,
    last_attempt_at = {now},
    leased_by = :worker,
    lease_token = :token,
    leased_until = {now + won.lease seconds},
    heartbeat_at = NULL
FROM won
WHERE j.id = won.id
RETURNING {claimed_columns};

-- name: use_rates
-- params: items
-- Note how far the rates of locked keys are used up, and how far apart their starts are.
UPDATE {limit_key} k
SET used_until = i.used_until, spacing = i.spacing
FROM json_to_recordset(:items::json) AS i (name text, key text, used_until timestamptz, spacing double precision)
WHERE k.limit_name = i.name AND k.limit_key = i.key;

-- name: give_back_rates
-- params: items
-- Jobs were given back unstarted: they were no starts.
UPDATE {limit_key} k
SET used_until = {k.used_until - i.number * k.spacing seconds}
FROM json_to_recordset(:items::json) AS i (name text, key text, number integer)
WHERE k.limit_name = i.name AND k.limit_key = i.key AND k.spacing IS NOT NULL;

-- name: hold_keys
-- params: items
-- Let nothing of these keys start for so many seconds. Of two ends the later one counts.
INSERT INTO {limit_key} AS k (limit_name, limit_key, held_until)
SELECT i.name, i.key, max({now + i.seconds seconds})
FROM json_to_recordset(:items::json) AS i (name text, key text, seconds double precision)
GROUP BY i.name, i.key
ORDER BY i.name, i.key
ON CONFLICT (limit_name, limit_key) DO UPDATE
    SET held_until = greatest(k.held_until, excluded.held_until);

-- name: next_scheduled
-- params: types
-- Seconds until the next pending job of these types is due that is not yet; no row where there is none.
WITH RECURSIVE found (type_name, suspect, priority) AS (
    SELECT type.name, s.suspect, top.priority
    FROM unnest(:types::text[]) AS type (name)
    CROSS JOIN (VALUES (false), (true)) AS s (suspect)
    CROSS JOIN LATERAL (
        SELECT j.priority
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = type.name AND j.suspect = s.suspect
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
      AND j.priority = found.priority AND j.scheduled_at > {now}
    ORDER BY j.scheduled_at
    LIMIT 1
) first
ORDER BY first.scheduled_at
LIMIT 1;

-- name: adopt_jobs
-- params: types, name, window
-- Jobs that were started before their type had a limit: mark them as such, so that they are found. The first of each type are looked
-- at, in the order in which they would be claimed.
WITH found AS MATERIALIZED (
    SELECT c.id
    FROM unnest(:types::text[]) AS type (name)
    CROSS JOIN LATERAL (
        SELECT j.id, j.limit_name
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = type.name
        ORDER BY j.suspect, j.priority DESC, j.scheduled_at
        LIMIT :window
    ) c
    WHERE c.limit_name IS NULL
),
locked AS MATERIALIZED (
    SELECT j.id FROM found JOIN {job} j ON j.id = found.id ORDER BY j.id FOR NO KEY UPDATE OF j SKIP LOCKED
)
UPDATE {job} j
SET limit_name = :name, limit_key = ''
FROM locked
WHERE j.id = locked.id AND j.limit_name IS NULL
RETURNING j.id;

-- name: set_limit
-- params: name, concurrency, rate, per, burst, set_by
-- An operator's numbers for a limit.
INSERT INTO {limit} AS l (name, concurrency, rate, per, burst, set_by)
VALUES (:name, :concurrency, :rate, :per, :burst, :set_by)
ON CONFLICT (name) DO UPDATE
    SET concurrency = excluded.concurrency,
        rate = excluded.rate,
        per = excluded.per,
        burst = excluded.burst,
        set_by = excluded.set_by,
        set_at = {now};

-- name: reset_limit
-- params: name
-- The code's numbers count again.
DELETE FROM {limit} WHERE name = :name RETURNING name;

-- name: list_limits
-- params:
-- What operators have set.
SELECT l.name, l.concurrency, l.rate, l.per, l.burst, l.set_by FROM {limit} l ORDER BY l.name;

-- name: limits_in_use
-- params: types, window
-- Limits and keys with jobs that wait or run, with how many, up to a number of each.
WITH keys AS (
    SELECT k.limit_name AS name, k.limit_key AS key FROM {limit_key} k
    UNION
    SELECT j.limit_name, j.limit_key
    FROM {job} j
    WHERE j.status = 'running' AND j.limit_name IS NOT NULL
    UNION
    SELECT w.limit_name, w.limit_key
    FROM unnest(:types::text[]) AS type (name)
    CROSS JOIN LATERAL (
        SELECT j.limit_name, j.limit_key
        FROM {job} j
        WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = type.name
        LIMIT :window
    ) w
)
SELECT
    keys.name, keys.key,
    (
        SELECT count(*)
        FROM {job} j
        WHERE j.status = 'running' AND j.limit_name IS NOT NULL AND j.limit_name = keys.name AND j.limit_key = keys.key
    ),
    (
        SELECT count(*)
        FROM unnest(:types::text[]) AS type (name)
        CROSS JOIN (VALUES (false), (true)) AS s (suspect)
        CROSS JOIN LATERAL (
            SELECT 1
            FROM {job} j
            WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = type.name AND j.suspect = s.suspect
              AND j.limit_name = keys.name AND j.limit_key = keys.key
            LIMIT :window
        ) w
    ),
    k.used_until, k.held_until, {now}
FROM keys
LEFT JOIN {limit_key} k ON k.limit_name = keys.name AND k.limit_key = keys.key
WHERE keys.key IS NOT NULL
ORDER BY keys.name, keys.key;

-- name: key_holders
-- params: name, key, window
-- What holds the places of a key: the chains of the jobs that run, some of them.
SELECT j.chain_id
FROM {job} j
WHERE j.status = 'running' AND j.limit_name IS NOT NULL AND j.limit_name = :name AND j.limit_key = :key
ORDER BY j.chain_id
LIMIT :window::bigint;

-- name: head_of_key
-- params: name, key
-- The first open job of a key whose jobs run in order, and its chain.
SELECT j.id, j.chain_id
FROM {job} j
WHERE j.limit_at IS NOT NULL AND j.status IN ('blocked', 'pending', 'running')
  AND j.limit_name = :name AND j.limit_key = :key
ORDER BY j.limit_at, j.id
LIMIT 1;
