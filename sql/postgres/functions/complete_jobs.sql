-- Completes jobs, continues their chains or closes them, and frees what waited for the chains that close: see the query
-- complete_jobs. First the locks, see {lock_jobs}. Each statement in here sees what was committed before it, so no dependant is
-- missed when the chains have closed. Where the transaction's snapshot is fixed that is not so: before chains close it is told,
-- with the rows locked and nothing written, and whoever has looked from outside calls again with `checked`. Without a token a
-- job is completed from outside, by whoever has locked it; `holder` is the worker that loses it by that.
-- Only what is out of the ordinary comes back: jobs that were `locked` by somebody else and left out, jobs whose lease was `lost`,
-- jobs that were `freed`, and a row that says that the `snapshot` is fixed.
CREATE OR REPLACE FUNCTION {complete_jobs}(
    worker text, items json, outputs text[], closing {id_type}[], continuing {id_type}[], wait boolean,
    checked boolean
)
RETURNS TABLE (what text, id {id_type}, type_name text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
DECLARE
    locked {id_type}[];
    done {id_type}[];
    closed {id_type}[];
    continues boolean;
BEGIN
    locked := {lock_jobs}($4, $5, $6);
    IF cardinality($4) > 0 AND NOT $7 AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RETURN QUERY SELECT 'snapshot', NULL::{id_type}, NULL::text;
        RETURN;
    END IF;
    WITH item AS MATERIALIZED (
        SELECT $1 AS worker, i.*
        FROM ROWS FROM (
            json_to_recordset($2) AS (
                id {id_type}, chain_id {id_type}, token bigint, outcome text, holder text, waited double precision,
                next_id {id_type}
            ),
            unnest($3)
        ) AS i (id, chain_id, token, outcome, holder, waited, next_id, output)
        WHERE i.id = ANY (locked) AND i.chain_id = ANY (locked)
        {few}
    ),
    done AS (
        UPDATE {job} j
        SET status = 'completed',
            output = item.output::jsonb,
            completed_at = {now},
            completed_by = item.worker,
            leased_by = NULL,
            leased_until = NULL,
            last_attempt_error = NULL,
            error_code = NULL,
            suspect = false,
            continued_to = item.next_id
        FROM (SELECT * FROM item {few}) item
        WHERE j.id = item.id
          AND (({fence}) OR (item.token IS NULL AND j.status IN ('pending', 'running', 'failed')))
        RETURNING
            j.id, j.chain_id, j.attempt, j.last_attempt_at, j.completed_at, coalesce(item.worker, item.holder) AS worker,
            item.outcome, item.waited, item.next_id
    ),
    attempt AS (
        INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
        SELECT
            done.id, done.attempt, done.worker, done.last_attempt_at,
            CASE WHEN done.waited IS NOT NULL THEN least({done.last_attempt_at + done.waited seconds}, done.completed_at) END,
            done.completed_at, done.outcome
        FROM done
        WHERE done.outcome IS NOT NULL
    )
    SELECT
        array_agg(done.id),
        array_agg(done.chain_id) FILTER (
            WHERE done.next_id IS NULL
              AND (SELECT count(*) FROM {job_blocker} b WHERE b.blocked_by_chain_id = done.chain_id) > 0
        ),
        bool_or(done.next_id IS NOT NULL)
    INTO done, closed, continues
    FROM done;
    IF coalesce(cardinality(done), 0) < json_array_length($2) THEN
        RETURN QUERY
        SELECT CASE WHEN i.id = ANY (locked) AND i.chain_id = ANY (locked) THEN 'lost' ELSE 'locked' END, i.id, NULL::text
        FROM json_to_recordset($2) AS i (id {id_type}, chain_id {id_type})
        WHERE done IS NULL OR i.id <> ALL (done);
    END IF;
    IF continues THEN
        INSERT INTO {job} (
            id, type_name, chain_id, chain_type_name, chain_index, input, status, priority, created_at, scheduled_at,
            max_attempts, deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context,
            trace_context, blockers_until, on_failed, limit_name, limit_key, limit_at
        )
        SELECT
            item.next_id, item.next_type, j.chain_id, j.chain_type_name, j.chain_index + 1, item.next_input::jsonb,
            CASE WHEN item.next_blockers > 0 THEN 'blocked' ELSE 'pending' END::{job_status},
            coalesce(item.next_priority, j.priority), {now},
            greatest({now}, coalesce(item.next_at, {now + item.next_after seconds})),
            item.next_max_attempts, j.deduplication_key, j.chain_created_at, item.next_blockers, item.next_blockers,
            j.chain_trace_context, item.next_trace, coalesce(item.next_until, 'completed'), item.next_on_failed,
            item.next_limit_name, item.next_limit_key, CASE WHEN item.next_limit_strict THEN {now} END
        FROM (
            SELECT *
            FROM (
                SELECT *
                FROM json_to_recordset($2) AS i (
                    id {id_type}, next_id {id_type}, next_type text, next_input text, next_priority integer,
                    next_at timestamptz, next_after double precision, next_max_attempts integer, next_blockers integer,
                    next_trace text, next_until text, next_on_failed text,
                    next_limit_name text, next_limit_key text, next_limit_strict boolean
                )
                WHERE i.next_id IS NOT NULL
                {few}
            ) i
            {few}
        ) item
        JOIN {job} j ON j.id = item.id AND j.continued_to = item.next_id;
    END IF;
    IF closed IS NOT NULL THEN
        RETURN QUERY SELECT 'freed', freed.id, freed.type_name FROM {release_dependants}(closed, true) freed;
    END IF;
END
$function$;
