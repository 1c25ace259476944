-- Completes one job, and continues its chain or closes it: what {complete_jobs} does, in statements for one row, since to set up
-- those for many takes longer than to run them. Its locks wait. Without a token the job is completed from outside, by
-- whoever has locked it; `holder` is the worker that loses it by that.
-- `strict` is for a caller who sends COMMIT along: whatever should keep the transaction from being committed is an error then.
-- A transaction whose snapshot is fixed may not see who has come to wait for the chain. Before it closes one it is told so, with
-- the rows locked and nothing written; whoever has looked from outside calls again with `checked`.
CREATE OR REPLACE FUNCTION {complete_job}(
    worker text, job {id_type}, root {id_type}, token bigint, result text, outcome text, holder text, waited double precision,
    strict boolean, checked boolean, next_id {id_type}, next_type text, next_input text, next_priority integer,
    next_at timestamptz, next_after double precision, next_max_attempts integer, next_blockers integer, next_trace text,
    next_until text, next_on_failed text, next_limit_name text, next_limit_key text, next_limit_strict boolean
)
RETURNS TABLE (what text, id {id_type}, type_name text)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
DECLARE
    done record;
    unsure boolean := next_id IS NULL AND NOT checked
        AND current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
BEGIN
    IF strict AND unsure THEN
        RAISE EXCEPTION 'the snapshot of this transaction is fixed' USING ERRCODE = 'QU002';
    END IF;
    IF next_id IS NULL THEN
        PERFORM FROM {job} j WHERE j.id = least(job, root) FOR UPDATE;
        IF job <> root THEN
            PERFORM FROM {job} j WHERE j.id = greatest(job, root) FOR UPDATE;
        END IF;
    ELSE
        PERFORM FROM {job} j WHERE j.id = least(job, root) FOR NO KEY UPDATE;
        IF job <> root THEN
            PERFORM FROM {job} j WHERE j.id = greatest(job, root) FOR NO KEY UPDATE;
        END IF;
    END IF;
    IF unsure THEN
        RETURN QUERY SELECT 'snapshot', NULL::{id_type}, NULL::text;
        RETURN;
    END IF;
    UPDATE {job} j
    SET status = 'completed',
        output = result::jsonb,
        completed_at = {now},
        completed_by = item.worker,
        leased_by = NULL,
        leased_until = NULL,
        last_attempt_error = NULL,
        error_code = NULL,
        suspect = false,
        continued_to = next_id
    FROM (SELECT worker AS worker, token AS token) item
    WHERE j.id = job
      AND (({fence}) OR (item.token IS NULL AND j.status IN ('pending', 'running', 'failed')))
    RETURNING
        j.attempt, j.last_attempt_at, j.chain_type_name, j.chain_index, j.priority, j.deduplication_key, j.chain_created_at,
        j.chain_trace_context
    INTO done;
    IF NOT FOUND THEN
        IF strict THEN
            RAISE EXCEPTION 'the lease of this job is lost' USING ERRCODE = 'QU001';
        END IF;
        RETURN QUERY SELECT 'lost', job, NULL::text;
        RETURN;
    END IF;
    IF outcome IS NOT NULL THEN
        INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
        VALUES (
            job, done.attempt, coalesce(worker, holder), done.last_attempt_at,
            CASE WHEN waited IS NOT NULL THEN least({done.last_attempt_at + waited seconds}, {now}) END, {now}, outcome
        );
    END IF;
    IF next_id IS NOT NULL THEN
        INSERT INTO {job} (
            id, type_name, chain_id, chain_type_name, chain_index, input, status, priority, created_at, scheduled_at,
            max_attempts, deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context, trace_context,
            blockers_until, on_failed, limit_name, limit_key, limit_at
        )
        VALUES (
            next_id, next_type, root, done.chain_type_name, done.chain_index + 1, next_input::jsonb,
            CASE WHEN next_blockers > 0 THEN 'blocked' ELSE 'pending' END::{job_status},
            coalesce(next_priority, done.priority), {now}, greatest({now}, coalesce(next_at, {now + next_after seconds})),
            next_max_attempts, done.deduplication_key, done.chain_created_at, next_blockers, next_blockers,
            done.chain_trace_context, next_trace, coalesce(next_until, 'completed'), next_on_failed,
            next_limit_name, next_limit_key, CASE WHEN next_limit_strict THEN {now} END
        );
    ELSIF (SELECT count(*) FROM {job_blocker} b WHERE b.blocked_by_chain_id = root) > 0 THEN
        RETURN QUERY SELECT 'freed', freed.id, freed.type_name FROM {release_dependants}(ARRAY[root], true) freed;
    END IF;
END
$function$;
