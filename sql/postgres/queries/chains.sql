-- name: get_jobs
-- params: ids
-- Jobs by id.
SELECT {j_columns}
FROM {ids} i
JOIN {job} j ON j.id = i.id;

-- name: get_chains
-- params: ids
-- Chains by id, each read through its first job and its tail.
SELECT {chain_columns}
FROM {ids} i
CROSS JOIN LATERAL (SELECT j.* FROM {job} j WHERE j.id = i.id OFFSET 0) r
CROSS JOIN LATERAL (SELECT l.* FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1) t
WHERE r.chain_id = r.id;

-- name: get_tails
-- params: ids
-- The tails of chains.
SELECT {j_columns}
FROM {ids} i
CROSS JOIN LATERAL (SELECT j.* FROM {job} j WHERE j.id = i.id OFFSET 0) r
CROSS JOIN LATERAL (SELECT l.* FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1) j
WHERE r.chain_id = r.id;

-- name: get_blockers
-- params: ids
-- The chains that jobs were given as blockers, in the order given.
SELECT b.job_id, {chain_columns}
FROM {ids} i
JOIN {job_blocker} b ON b.job_id = i.id
JOIN {job} r ON r.id = b.blocked_by_chain_id
CROSS JOIN LATERAL (SELECT l.* FROM {job} l WHERE l.chain_id = r.id ORDER BY l.chain_index DESC LIMIT 1) t
ORDER BY b.job_id, b.index;

-- name: count_blockers
-- params: id
-- How many of the chains that a job was given as blockers are in which state.
SELECT t.status, count(*)
FROM (SELECT b.blocked_by_chain_id FROM {job_blocker} b WHERE b.job_id = :id::{id_type} {few}) b
CROSS JOIN LATERAL (
    SELECT l.status FROM {job} l WHERE l.chain_id = b.blocked_by_chain_id ORDER BY l.chain_index DESC LIMIT 1
) t
GROUP BY t.status;

-- name: waiting_chains
-- params: ids
-- These chains and those whose tails wait for them, directly or through others. Nobody waits for a completed one.
WITH RECURSIVE reached (chain_id) AS (
    SELECT i.id FROM unnest(:ids::{id_type}[]) AS i (id)
    UNION
    SELECT waiting.chain_id
    FROM (SELECT reached.chain_id FROM reached {few}) r
    CROSS JOIN LATERAL (
        SELECT t.status FROM {job} t WHERE t.chain_id = r.chain_id ORDER BY t.chain_index DESC LIMIT 1
    ) tail
    CROSS JOIN LATERAL (
        SELECT j.chain_id
        FROM (SELECT b.job_id FROM {job_blocker} b WHERE b.blocked_by_chain_id = r.chain_id OFFSET 0) b
        CROSS JOIN LATERAL (SELECT j.chain_id, j.status FROM {job} j WHERE j.id = b.job_id OFFSET 0) j
        WHERE j.status = 'blocked'
    ) waiting
    WHERE tail.status <> 'completed'
)
SELECT chain_id FROM reached;

-- name: waiting_jobs
-- params: ids
-- The jobs that were given these chains as blockers, in whatever state.
SELECT b.job_id
FROM unnest(:ids::{id_type}[]) AS i (id)
CROSS JOIN LATERAL (SELECT b.job_id FROM {job_blocker} b WHERE b.blocked_by_chain_id = i.id OFFSET 0) b;

-- name: blocker_chains
-- params: ids
-- These chains and all that their jobs were ever given as blockers, directly or through others.
WITH RECURSIVE reached (chain_id) AS (
    SELECT i.id FROM unnest(:ids::{id_type}[]) AS i (id)
    UNION
    SELECT b.blocked_by_chain_id
    FROM (SELECT reached.chain_id FROM reached {few}) r
    JOIN {job} j ON j.chain_id = r.chain_id
    JOIN {job_blocker} b ON b.job_id = j.id
)
SELECT chain_id FROM reached;

-- name: connected_chains
-- params: ids
-- All chains linked to these by blockers, in either direction, themselves included.
WITH RECURSIVE reached (chain_id) AS (
    SELECT i.id FROM unnest(:ids::{id_type}[]) AS i (id)
    UNION
    SELECT linked.chain_id
    FROM (SELECT reached.chain_id FROM reached {few}) r
    CROSS JOIN LATERAL (
        SELECT b.blocked_by_chain_id AS chain_id
        FROM {job} j
        JOIN {job_blocker} b ON b.job_id = j.id
        WHERE j.chain_id = r.chain_id
        UNION ALL
        SELECT j.chain_id
        FROM {job_blocker} b
        JOIN {job} j ON j.id = b.job_id
        WHERE b.blocked_by_chain_id = r.chain_id
    ) linked
)
SELECT chain_id FROM reached;

-- name: chain_types
-- params:
-- The types of all chains, by jumping from one to the next in the index.
WITH RECURSIVE found (name) AS (
    (SELECT t.chain_type_name FROM {job} t WHERE t.continued_to IS NULL ORDER BY t.chain_type_name LIMIT 1)
    UNION ALL
    SELECT (
        SELECT t.chain_type_name
        FROM {job} t
        WHERE t.continued_to IS NULL AND t.chain_type_name > found.name
        ORDER BY t.chain_type_name
        LIMIT 1
    )
    FROM found
    WHERE found.name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL;
