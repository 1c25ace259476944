-- name: _paused
-- The names of the types that are paused now, an empty one for everything: read once a statement, and almost always empty.
ARRAY(SELECT p.name FROM {pause} p WHERE p.kind = 'type' AND (p.until IS NULL OR p.until > {now}));

-- name: claim_jobs
-- params: worker, token, types, levels, suspect, held, window, limit
-- Take due jobs for a worker: the highest priority first, then the longest due.
-- The (type, priority) pairs that have pending jobs are found by jumping from one to the next; each gives a window of
-- candidates in index order, and only the merged winners are locked. `levels` names known pairs and how far each was
-- claimed: starting there steps over the dead index entries that a held snapshot keeps at the head. `types` names
-- the types to look through from the start. What is paused is left out. Losing a claim in a crash costs a re-run only, so it commits asynchronously.
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
    WHERE NOT ARRAY[t.name, ''] && {_paused}
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
        WHERE NOT ARRAY[l.type_name, ''] && {_paused}
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
          AND j.id <> ALL (:held::{id_type}[])
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
        attempt = least(j.attempt, 2147483646) + 1,
        last_attempt_at = {now},
        leased_by = :worker,
        lease_token = :token,
        leased_until = {now + won.lease seconds},
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
-- Take due jobs from the first few in the line of one type, the highest priority first, then the longest due: for a worker that
-- has nothing to do and hears of a job. It takes half the time of claim_jobs, and may find nothing where that does: behind as
-- many jobs of a higher priority that are not due yet, or that somebody else has locked.
WITH first AS MATERIALIZED (
    SELECT c.id, c.priority, c.scheduled_at
    FROM (
        SELECT j.id, j.priority, j.scheduled_at
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = :type AND j.suspect = false
          AND j.id <> ALL (:held::{id_type}[])
          AND NOT ARRAY[:type, ''] && {_paused}
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
    attempt = least(j.attempt, 2147483646) + 1,
    last_attempt_at = {now},
    leased_by = :worker,
    lease_token = :token,
    leased_until = {now + :lease::double precision seconds},
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

-- name: next_due
-- params: types
-- Seconds until the earliest pending job of these types can be claimed: it is due, and no pause holds it. No row where there is none.
WITH RECURSIVE type AS (
    SELECT t.name, p.until
    FROM unnest(:types::text[]) AS t (name)
    CROSS JOIN LATERAL (
        SELECT max(coalesce(p.until, 'infinity')) AS until
        FROM {pause} p
        WHERE p.kind = 'type' AND p.name IN ('', t.name) AND (p.until IS NULL OR p.until > {now})
    ) p
    WHERE p.until IS DISTINCT FROM 'infinity'
),
lane AS (
    SELECT type.name, type.until, s.suspect FROM type CROSS JOIN (VALUES (false), (true)) AS s (suspect)
),
found (type_name, suspect, until, priority) AS (
    SELECT lane.name, lane.suspect, lane.until, top.priority
    FROM lane
    CROSS JOIN LATERAL (
        SELECT j.priority
        FROM {job} j
        WHERE j.status = 'pending' AND j.type_name = lane.name AND j.suspect = lane.suspect
        ORDER BY j.priority DESC
        LIMIT 1
    ) top
    UNION ALL
    SELECT found.type_name, found.suspect, found.until, lower.priority
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
SELECT extract(epoch FROM greatest(first.scheduled_at, found.until) - {now})::double precision
FROM found
CROSS JOIN LATERAL (
    SELECT j.scheduled_at
    FROM {job} j
    WHERE j.status = 'pending' AND j.type_name = found.type_name AND j.suspect = found.suspect
      AND j.priority = found.priority
    ORDER BY j.scheduled_at
    LIMIT 1
) first
ORDER BY greatest(first.scheduled_at, found.until)
LIMIT 1;

-- name: release_claims
-- params: worker, items
-- Give back jobs that were claimed and not started; the attempt is taken back too.
WITH item AS MATERIALIZED (
    SELECT :worker::text AS worker, i.*
    FROM (SELECT * FROM json_to_recordset(:items::json) AS i (id {id_type}, token bigint) {few}) i
    {few}
),
locked AS MATERIALIZED (
    SELECT j.id
    FROM item
    JOIN {job} j ON j.id = item.id
    WHERE {fence}
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
