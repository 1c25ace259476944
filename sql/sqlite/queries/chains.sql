-- name: get_jobs
-- params: ids
-- Jobs by id.
SELECT {j_columns}
FROM json_each(:ids) i
CROSS JOIN {job} j ON j.id = i.value;

-- name: get_chains
-- params: ids
-- Chains by id, each read through its first job and its tail.
SELECT {chain_columns}
FROM json_each(:ids) i
CROSS JOIN {job} r ON r.id = i.value AND r.chain_id = r.id
JOIN {job} t ON t.id = (SELECT l.id FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1);

-- name: get_tails
-- params: ids
-- The tails of chains.
SELECT {j_columns}
FROM json_each(:ids) i
CROSS JOIN {job} r ON r.id = i.value AND r.chain_id = r.id
JOIN {job} j ON j.id = (SELECT l.id FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1);

-- name: get_blockers
-- params: ids
-- The chains that jobs were given as blockers, in the order given.
SELECT b.job_id, {chain_columns}
FROM json_each(:ids) i
CROSS JOIN {job_blocker} b ON b.job_id = i.value
JOIN {job} r ON r.id = b.blocked_by_chain_id
JOIN {job} t ON t.id = (SELECT l.id FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1)
ORDER BY b.job_id, b."index";

-- name: count_blockers
-- params: id
-- How many of the chains that a job was given as blockers are in which state.
SELECT t.status, count(*)
FROM (
    SELECT (
        SELECT l.status FROM {job} l WHERE l.chain_id = b.blocked_by_chain_id ORDER BY l.chain_index DESC LIMIT 1
    ) AS status
    FROM {job_blocker} b
    WHERE b.job_id = :id
) t
GROUP BY t.status;

-- name: waiting_chains
-- params: ids
-- These chains and those whose tails wait for them, directly or through others. Nobody waits for a completed one.
-- The condition on the state names two tables, or SQLite would read all jobs for a Bloom filter of those that fulfil it.
WITH RECURSIVE reached (chain_id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT j.chain_id
    FROM reached r
    CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = r.chain_id
    CROSS JOIN {job} j ON j.id = b.job_id
    WHERE CASE WHEN r.chain_id IS NOT NULL THEN j.status END = 'blocked'
      AND (
          SELECT t.status FROM {job} t WHERE t.chain_id = r.chain_id ORDER BY t.chain_index DESC LIMIT 1
      ) <> 'completed'
)
SELECT chain_id FROM reached;

-- name: waiting_jobs
-- params: ids
-- The jobs that were given these chains as blockers, in whatever state.
SELECT b.job_id
FROM json_each(:ids) i
CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = i.value;

-- name: blocker_chains
-- params: ids
-- These chains and all that their jobs were ever given as blockers, directly or through others.
WITH RECURSIVE reached (chain_id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT b.blocked_by_chain_id
    FROM reached r
    CROSS JOIN {job} j ON j.chain_id = r.chain_id
    CROSS JOIN {job_blocker} b ON b.job_id = j.id
)
SELECT chain_id FROM reached;

-- name: connected_chains
-- params: ids
-- All chains linked to these by blockers, in either direction, themselves included.
WITH RECURSIVE reached (chain_id) AS (
    SELECT value FROM json_each(:ids)
    UNION
    SELECT b.blocked_by_chain_id
    FROM reached r
    CROSS JOIN {job} j ON j.chain_id = r.chain_id
    CROSS JOIN {job_blocker} b ON b.job_id = j.id
    UNION
    SELECT j.chain_id
    FROM reached r
    CROSS JOIN {job_blocker} b ON b.blocked_by_chain_id = r.chain_id
    CROSS JOIN {job} j ON j.id = b.job_id
)
SELECT chain_id FROM reached;

-- name: chain_types
-- params:
-- The types of all chains, by jumping from one to the next in the index.
WITH RECURSIVE found (name) AS (
    SELECT min(t.chain_type_name) FROM {job} t WHERE t.continued_to IS NULL
    UNION ALL
    SELECT (SELECT min(t.chain_type_name) FROM {job} t WHERE t.continued_to IS NULL AND t.chain_type_name > found.name)
    FROM found
    WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL;
