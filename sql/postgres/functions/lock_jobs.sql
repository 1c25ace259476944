-- Locks jobs in id order: first those that are about to close a chain, with the first jobs of these chains, then those that
-- only change. Whoever is naming a closing chain as a blocker at this moment is waited for, and the next statement sees the
-- outcome (unless the transaction's snapshot is fixed). Where it may not wait, a row that somebody else has locked is left out;
-- and so is a closing chain that somebody's locked job waits for, since counting down in that job would wait.
-- Returns the ids that are locked now.
CREATE OR REPLACE FUNCTION {lock_jobs}(closing {id_type}[], changing {id_type}[], wait boolean)
RETURNS {id_type}[]
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $function$
DECLARE
    locked {id_type}[] := ARRAY[]::{id_type}[];
BEGIN
    IF wait AND cardinality(closing) > 0 THEN
        locked := ARRAY(
            SELECT j.id
            FROM (SELECT i.id FROM unnest(closing) AS i (id) {few}) i
            JOIN {job} j ON j.id = i.id
            ORDER BY j.id
            FOR UPDATE OF j
        );
    ELSIF cardinality(closing) > 0 THEN
        locked := ARRAY(
            WITH free AS MATERIALIZED (
                SELECT j.id
                FROM (SELECT i.id FROM unnest(closing) AS i (id) {few}) i
                JOIN {job} j ON j.id = i.id
                ORDER BY j.id
                FOR UPDATE OF j SKIP LOCKED
            ),
            waiting AS MATERIALIZED (
                SELECT free.id AS chain_id, b.job_id
                FROM free
                CROSS JOIN LATERAL (SELECT b.job_id FROM {job_blocker} b WHERE b.blocked_by_chain_id = free.id OFFSET 0) b
                {few}
            ),
            ready AS MATERIALIZED (
                SELECT j.id
                FROM waiting
                JOIN {job} j ON j.id = waiting.job_id
                ORDER BY j.id
                FOR NO KEY UPDATE OF j SKIP LOCKED
            )
            SELECT free.id
            FROM free
            WHERE free.id NOT IN (
                SELECT waiting.chain_id FROM waiting WHERE waiting.job_id NOT IN (SELECT ready.id FROM ready)
            )
        );
    END IF;
    IF cardinality(changing) = 0 THEN
        RETURN locked;
    ELSIF wait THEN
        RETURN locked || ARRAY(
            SELECT j.id
            FROM (SELECT i.id FROM unnest(changing) AS i (id) {few}) i
            JOIN {job} j ON j.id = i.id
            ORDER BY j.id
            FOR NO KEY UPDATE OF j
        );
    ELSE
        RETURN locked || ARRAY(
            SELECT j.id
            FROM (SELECT i.id FROM unnest(changing) AS i (id) {few}) i
            JOIN {job} j ON j.id = i.id
            ORDER BY j.id
            FOR NO KEY UPDATE OF j SKIP LOCKED
        );
    END IF;
END
$function$;
