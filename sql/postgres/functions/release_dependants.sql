-- Chains have completed: counts them down in the jobs that wait for them, and frees the jobs that wait for nothing more.
--
-- The functions here look rows up by key, whatever the sizes of the tables were when their statements were planned: a plan is
-- kept for as long as the connection lives, or until the tables are analysed.
CREATE OR REPLACE FUNCTION {release_dependants}(closed {id_type}[])
RETURNS TABLE (id {id_type}, type_name text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH waiting AS MATERIALIZED (
        SELECT b.job_id, count(*) AS n
        FROM (SELECT c.id FROM unnest($1) AS c (id) {few}) c
        CROSS JOIN LATERAL (
            SELECT b.job_id FROM {job_blocker} b WHERE b.blocked_by_chain_id = c.id OFFSET 0
        ) b
        GROUP BY b.job_id
        {few}
    ),
    locked AS MATERIALIZED (
        SELECT j.id, waiting.n
        FROM waiting
        JOIN {job} j ON j.id = waiting.job_id
        ORDER BY j.id
        FOR NO KEY UPDATE OF j
    ),
    counted AS (
        UPDATE {job} j
        SET open_blockers = j.open_blockers - locked.n,
            status = CASE WHEN j.status = 'blocked' AND j.open_blockers <= locked.n THEN 'pending' ELSE j.status END,
            scheduled_at = CASE
                WHEN j.status = 'blocked' AND j.open_blockers <= locked.n THEN greatest(j.scheduled_at, {now})
                ELSE j.scheduled_at
            END
        FROM locked
        WHERE j.id = locked.id
        RETURNING j.id, j.type_name, j.status
    ),
    event AS (
        INSERT INTO {job_event} (job_id, event)
        SELECT counted.id, 'UNBLOCKED' FROM counted WHERE counted.status = 'pending'
    )
    SELECT counted.id, counted.type_name
    FROM counted
    WHERE counted.status = 'pending';
END
$function$;
