-- name: waiting_keys
-- params: type, suspect, after_name, after_key, window
-- The limits and keys that have jobs of a type waiting, after a given one, with each priority and when its first job is due: by
-- jumping from one to the next, so that a key with a million jobs costs as much as one with ten.
WITH RECURSIVE found (place, number) AS (
    SELECT
        (
            SELECT j.rowid
            FROM {job} j
            WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = :type AND j.suspect = :suspect
              AND (j.limit_name, j.limit_key) > (:after_name, :after_key)
            ORDER BY j.limit_name, j.limit_key, j.priority DESC, j.scheduled_at
            LIMIT 1
        ),
        1
    WHERE '' NOT IN {_paused} AND :type NOT IN {_paused}
    UNION ALL
    SELECT
        coalesce(
            (
                SELECT j.rowid
                FROM {job} j
                WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = :type AND j.suspect = :suspect
                  AND j.limit_name = p.limit_name AND j.limit_key = p.limit_key AND j.priority < p.priority
                ORDER BY j.priority DESC, j.scheduled_at
                LIMIT 1
            ),
            (
                SELECT j.rowid
                FROM {job} j
                WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = :type AND j.suspect = :suspect
                  AND (j.limit_name, j.limit_key) > (p.limit_name, p.limit_key)
                ORDER BY j.limit_name, j.limit_key, j.priority DESC, j.scheduled_at
                LIMIT 1
            )
        ),
        found.number + 1
    FROM found
    CROSS JOIN {job} p ON p.rowid = found.place
    WHERE found.number < :window
)
SELECT j.limit_name, j.limit_key, j.priority, j.scheduled_at <= {now}
FROM found
CROSS JOIN {job} j ON j.rowid = found.place;

-- name: make_limit_keys
-- params: items
-- Take the write lock, and make the rows of keys that have none yet.
INSERT INTO {limit_key} (limit_name, limit_key)
SELECT json_extract(value, '$.name'), json_extract(value, '$.key')
FROM json_each(:items)
WHERE true
ON CONFLICT (limit_name, limit_key) DO NOTHING;

-- name: look_at_keys
-- params: items
-- What stands in the way of keys: how many of each run; what an operator has set; how far its rate is used
-- up; until when it is held; where its jobs run in order, the first that is open, if it is due. And the time.
SELECT
    i.name, i.key, {now},
    (
        SELECT count(*)
        FROM {job} j
        WHERE j.status = 'running' AND j.limit_name IS NOT NULL AND j.limit_name = i.name AND j.limit_key = i.key
    ),
    l.concurrency, l.rate, l.per, l.burst, k.used_until, k.held_until,
    CASE WHEN i.strict THEN (
        SELECT CASE WHEN j.status = 'pending' AND j.scheduled_at <= {now} THEN j.id END
        FROM {job} j
        WHERE j.limit_at IS NOT NULL AND j.status IN ('blocked', 'pending', 'running')
          AND j.limit_name = i.name AND j.limit_key = i.key
        ORDER BY j.limit_at, j.id
        LIMIT 1
    ) END
FROM (
    SELECT
        json_extract(value, '$.name') AS name,
        json_extract(value, '$.key') AS key,
        json_extract(value, '$.strict') AS strict
    FROM json_each(:items)
) i
LEFT JOIN {limit_key} k ON k.limit_name = i.name AND k.limit_key = i.key
LEFT JOIN {limit} l ON l.name = i.name;

-- name: claim_limited
-- params: worker, token, levels, heads, suspect, held, limit
-- Take due jobs of keys that have room: up to `room` of each key, and the keys take turns. `heads` are the first jobs of keys whose
-- jobs run in order.
UPDATE {job}
SET status = 'running',
    attempt = attempt + 1,
    last_attempt_at = {now},
    leased_by = :worker,
    lease_token = :token,
    leased_until = {now + won.lease seconds},
    heartbeat_at = NULL
FROM (
    SELECT c.place, c.lease
    FROM (
        SELECT
            j.rowid AS place, level.lease, level.room, j.priority, j.scheduled_at,
            row_number() OVER (PARTITION BY level.name, level.key ORDER BY j.priority DESC, j.scheduled_at) AS number
        FROM (
            SELECT
                json_extract(value, '$.type') AS type,
                json_extract(value, '$.name') AS name,
                json_extract(value, '$.key') AS key,
                json_extract(value, '$.priority') AS priority,
                json_extract(value, '$.room') AS room,
                json_extract(value, '$.lease') AS lease
            FROM json_each(:levels)
        ) level
        CROSS JOIN {job} j ON j.rowid IN (
            SELECT w.rowid
            FROM {job} w
            WHERE w.status = 'pending' AND w.limit_name IS NOT NULL AND w.type_name = level.type AND w.suspect = :suspect
              AND w.limit_name = level.name AND w.limit_key = level.key AND w.priority = level.priority
              AND w.scheduled_at <= {now}
              AND (:held = '[]' OR w.id NOT IN (SELECT value FROM json_each(:held)))
            ORDER BY w.scheduled_at
            LIMIT :limit
        )
        UNION ALL
        SELECT j.rowid, json_extract(value, '$.lease'), 1, j.priority, j.scheduled_at, 1
        FROM json_each(:heads)
        CROSS JOIN {job} j ON j.id = json_extract(value, '$.id')
        WHERE :held = '[]' OR j.id NOT IN (SELECT h.value FROM json_each(:held) h)
    ) c
    WHERE c.number <= c.room
    ORDER BY c.number, c.priority DESC, c.scheduled_at
    LIMIT :limit
) won
WHERE {job}.rowid = won.place AND status = 'pending' AND scheduled_at <= {now} AND suspect = :suspect
  AND '' NOT IN {_paused} AND type_name NOT IN {_paused};

-- name: claimed_now
-- params: worker, token
-- What was claimed with a token: few jobs run at a time.
SELECT json_group_array(json_array({claimed_columns}))
FROM {job} j
WHERE j.status = 'running' AND j.leased_by = :worker AND j.lease_token = :token;

-- name: use_rates
-- params: items
-- Note how far the rates of keys are used up, and how far apart their starts are.
UPDATE {limit_key}
SET used_until = i.used_until, spacing = i.spacing
FROM (
    SELECT
        json_extract(value, '$.name') AS name,
        json_extract(value, '$.key') AS key,
        json_extract(value, '$.used_until') AS used_until,
        json_extract(value, '$.spacing') AS spacing
    FROM json_each(:items)
) i
WHERE limit_name = i.name AND limit_key = i.key;

-- name: give_back_rates
-- params: items
-- Jobs were given back unstarted: they were no starts.
UPDATE {limit_key}
SET used_until = {used_until - i.number * spacing seconds}
FROM (
    SELECT
        json_extract(value, '$.name') AS name,
        json_extract(value, '$.key') AS key,
        json_extract(value, '$.number') AS number
    FROM json_each(:items)
) i
WHERE limit_name = i.name AND limit_key = i.key AND spacing IS NOT NULL;

-- name: hold_keys
-- params: items
-- Let nothing of these keys start for so many seconds. Of two ends the later one counts.
INSERT INTO {limit_key} (limit_name, limit_key, held_until)
SELECT
    json_extract(value, '$.name'), json_extract(value, '$.key'), max({now + json_extract(value, '$.seconds') seconds})
FROM json_each(:items)
WHERE true
GROUP BY 1, 2
ON CONFLICT (limit_name, limit_key) DO UPDATE
    SET held_until = max(coalesce(held_until, ''), excluded.held_until);

-- name: next_scheduled
-- params: types
-- Seconds until the next pending job of these types is due that is not yet; no row where there is none.
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
          AND j.priority = found.priority AND j.scheduled_at > {now}
        ORDER BY j.scheduled_at
        LIMIT 1
    ) AS at
    FROM found
    WHERE found.priority IS NOT NULL
) first
WHERE first.at IS NOT NULL
ORDER BY first.at
LIMIT 1;

-- name: adopt_jobs
-- params: types, name, window
-- Jobs that were started before their type had a limit: mark them as such, so that they are found. The first of each type are looked
-- at, in the order in which they would be claimed.
UPDATE {job}
SET limit_name = :name, limit_key = ''
WHERE limit_name IS NULL AND status = 'pending' AND rowid IN (
    SELECT c.rowid
    FROM json_each(:types) type
    CROSS JOIN {job} c ON c.rowid IN (
        SELECT j.rowid
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = type.value
        ORDER BY j.suspect, j.priority DESC, j.scheduled_at
        LIMIT :window
    )
)
RETURNING id;

-- name: set_limit
-- params: name, concurrency, rate, per, burst, set_by
-- An operator's numbers for a limit.
INSERT INTO {limit} (name, concurrency, rate, per, burst, set_by)
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
SELECT
    keys.name, keys.key,
    (
        SELECT count(*)
        FROM {job} j
        WHERE j.status = 'running' AND j.limit_name IS NOT NULL AND j.limit_name = keys.name AND j.limit_key = keys.key
    ),
    (
        SELECT count(*)
        FROM json_each(:types) type
        CROSS JOIN json_each('[0, 1]') s
        CROSS JOIN {job} j
        WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = type.value AND j.suspect = s.value
          AND j.limit_name = keys.name AND j.limit_key = keys.key
    ),
    k.used_until, k.held_until, {now}
FROM (
    SELECT k.limit_name AS name, k.limit_key AS key FROM {limit_key} k
    UNION
    SELECT j.limit_name, j.limit_key FROM {job} j WHERE j.status = 'running' AND j.limit_name IS NOT NULL
    UNION
    SELECT w.limit_name, w.limit_key
    FROM json_each(:types) type
    CROSS JOIN {job} w ON w.rowid IN (
        SELECT j.rowid
        FROM {job} j
        WHERE j.status = 'pending' AND j.limit_name IS NOT NULL AND j.type_name = type.value
        LIMIT :window
    )
) keys
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
LIMIT :window;

-- name: head_of_key
-- params: name, key
-- The first open job of a key whose jobs run in order, and its chain.
SELECT j.id, j.chain_id
FROM {job} j
WHERE j.limit_at IS NOT NULL AND j.status IN ('blocked', 'pending', 'running')
  AND j.limit_name = :name AND j.limit_key = :key
ORDER BY j.limit_at, j.id
LIMIT 1;
