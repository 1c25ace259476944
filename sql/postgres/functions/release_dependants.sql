-- Chains have closed: counts them down in the jobs that wait for them, and frees the jobs that wait for nothing more. Chains that
-- have not `completed` count only for jobs that wait until their blockers have closed, however these ended.
-- A job of that kind is freed after a recount, see {recount_blockers}: workers of the release before this one do not count up when
-- a failed blocker is retried.
--
-- The functions here look rows up by key, whatever the sizes of the tables were when their statements were planned: a plan is
-- kept for as long as the connection lives, or until the tables are analysed.
CREATE OR REPLACE FUNCTION {release_dependants}(closed {id_type}[], completed boolean)
RETURNS TABLE (id {id_type}, type_name text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
DECLARE
    freed boolean;
    last {id_type}[];
BEGIN
    FOR id, type_name, freed IN
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
            SELECT
                j.id, waiting.n, j.status = 'blocked' AND j.open_blockers <= waiting.n AS is_last,
                j.blockers_until = 'completed' AS until_completed
            FROM waiting
            JOIN {job} j ON j.id = waiting.job_id
            WHERE $2 OR j.blockers_until = 'closed'
            ORDER BY j.id
            FOR NO KEY UPDATE OF j
        ),
        counted AS (
            UPDATE {job} j
            SET open_blockers = j.open_blockers - locked.n,
                status = CASE WHEN locked.is_last AND locked.until_completed THEN 'pending' ELSE j.status END,
                scheduled_at = CASE
                    WHEN locked.is_last AND locked.until_completed THEN greatest(j.scheduled_at, {now})
                    ELSE j.scheduled_at
                END
            FROM locked
            WHERE j.id = locked.id
            RETURNING j.id, j.type_name, locked.is_last, locked.until_completed
        ),
        event AS (
            INSERT INTO {job_event} (job_id, event)
            SELECT counted.id, 'UNBLOCKED' FROM counted WHERE counted.is_last AND counted.until_completed
        )
        SELECT counted.id, counted.type_name, counted.until_completed
        FROM counted
        WHERE counted.is_last
    LOOP
        IF freed THEN
            RETURN NEXT;
        ELSE
            last := array_append(last, id);
        END IF;
    END LOOP;
    IF last IS NOT NULL THEN
        RETURN QUERY SELECT freed.id, freed.type_name FROM {recount_blockers}(last) freed;
    END IF;
END
$function$;
