-- Counts anew which blockers of these jobs are open, of those that wait until their blockers have closed, and frees the jobs that
-- have none. Their rows are locked by the caller, in a statement before this one: of two who close a blocker each at the same
-- time, the second to get the lock sees what the first has done.
CREATE OR REPLACE FUNCTION {recount_blockers}(jobs {id_type}[])
RETURNS TABLE (id {id_type}, type_name text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH count AS MATERIALIZED (
        SELECT i.id, (
            SELECT count(*)
            FROM (SELECT b.blocked_by_chain_id FROM {job_blocker} b WHERE b.job_id = i.id OFFSET 0) b
            CROSS JOIN LATERAL (
                SELECT t.status FROM {job} t WHERE t.chain_id = b.blocked_by_chain_id ORDER BY t.chain_index DESC LIMIT 1
            ) t
            WHERE t.status IN ('blocked', 'pending', 'running')
        ) AS open
        FROM (SELECT i.id FROM unnest($1) AS i (id) {few}) i
        {few}
    ),
    counted AS (
        UPDATE {job} j
        SET open_blockers = count.open,
            status = CASE WHEN count.open > 0 THEN 'blocked' ELSE 'pending' END::{job_status},
            scheduled_at = CASE WHEN count.open > 0 THEN j.scheduled_at ELSE greatest(j.scheduled_at, {now}) END
        FROM count
        WHERE j.id = count.id AND j.status = 'blocked' AND j.blockers_until = 'closed'
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
