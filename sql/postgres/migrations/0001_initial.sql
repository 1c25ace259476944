-- The tables of a job queue whose chains are read through their tails.

CREATE TYPE {job_status} AS ENUM ('blocked', 'pending', 'running', 'completed', 'failed', 'cancelled');

CREATE TABLE {job} (
    id {id_type} PRIMARY KEY{id_default},
    type_name text NOT NULL,
    chain_id {id_type} NOT NULL REFERENCES {job} (id),
    chain_type_name text NOT NULL,
    chain_index integer NOT NULL DEFAULT 0,
    input jsonb NOT NULL DEFAULT 'null',
    output jsonb,
    status {job_status} NOT NULL DEFAULT 'pending',
    priority integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    scheduled_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    completed_at timestamptz,
    completed_by text,
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer DEFAULT 25,
    attempts_forgiven integer NOT NULL DEFAULT 0,
    last_attempt_at timestamptz,
    last_attempt_error text,
    error_code text,
    leased_by text,
    leased_until timestamptz,
    lease_token bigint,
    heartbeat_at timestamptz,
    deduplication_key text,
    -- No foreign key: every delete would look for rows that point here.
    continued_to {id_type},
    chain_created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    open_blockers integer NOT NULL DEFAULT 0,
    blocker_count integer NOT NULL DEFAULT 0,
    suspect boolean NOT NULL DEFAULT false,
    chain_trace_context text,
    trace_context text
);

-- The jobs of a chain in order; its last one is the tail. It also keeps a chain from ever having two tails.
CREATE UNIQUE INDEX "{prefix}job_chain_idx" ON {job} (chain_id, chain_index);

-- What a claim reads. Suspects (their last worker died) stand apart, so that they hold nobody up.
CREATE INDEX "{prefix}job_claim_idx" ON {job} (type_name, suspect, priority DESC, scheduled_at)
    WHERE status = 'pending';

CREATE INDEX "{prefix}job_lease_idx" ON {job} (leased_until)
    WHERE status = 'running';

-- Chains by type, state and age.
CREATE INDEX "{prefix}job_tail_idx" ON {job} (chain_type_name, status, chain_created_at, chain_id)
    WHERE continued_to IS NULL;

-- Jobs by type, state and age; also counts them.
CREATE INDEX "{prefix}job_listing_idx" ON {job} (type_name, status, created_at, id);

CREATE INDEX "{prefix}job_deduplication_idx" ON {job} (chain_type_name, deduplication_key, chain_created_at)
    WHERE deduplication_key IS NOT NULL AND continued_to IS NULL;

-- Jobs that are to be tried again, by how often they were: few, so that it costs the others nothing.
CREATE INDEX "{prefix}job_retry_idx" ON {job} (type_name, attempt)
    WHERE status = 'pending' AND attempt > 0;

CREATE INDEX "{prefix}job_error_idx" ON {job} (error_code, type_name)
    WHERE error_code IS NOT NULL;

ALTER TABLE {job} SET (
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE {job_blocker} (
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    blocked_by_chain_id {id_type} NOT NULL REFERENCES {job} (id),
    index integer NOT NULL,
    trace_context text,
    PRIMARY KEY (job_id, blocked_by_chain_id)
);

CREATE INDEX "{prefix}job_blocker_chain_idx" ON {job_blocker} (blocked_by_chain_id);

ALTER TABLE {job_blocker} SET (autovacuum_vacuum_cost_delay = 0);

CREATE TABLE {job_key} (
    chain_type_name text NOT NULL,
    deduplication_key text NOT NULL,
    PRIMARY KEY (chain_type_name, deduplication_key)
);

CREATE TABLE {job_attempt} (
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    attempt integer NOT NULL,
    worker_id text,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('succeeded', 'failed', 'rescheduled', 'lost', 'cancelled')),
    error_code text,
    error_detail text,
    retry_at timestamptz,
    PRIMARY KEY (job_id, attempt)
);

CREATE TABLE {job_event} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id {id_type} NOT NULL REFERENCES {job} (id) ON DELETE CASCADE,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    event text NOT NULL,
    actor text,
    detail jsonb NOT NULL DEFAULT jsonb_build_object()
);

CREATE INDEX "{prefix}job_event_job_idx" ON {job_event} (job_id, id);

CREATE TABLE {singleton} (
    name text PRIMARY KEY,
    leased_by text,
    leased_until timestamptz,
    last_run_at timestamptz,
    next_run_at timestamptz
);

-- The functions look rows up by key, whatever the sizes of the tables were when their statements were planned: a plan is kept for
-- as long as the connection lives, or until the tables are analysed.

-- Chains have completed: counts them down in the jobs that wait for them, and frees the jobs that wait for nothing more.
CREATE FUNCTION {release}(closed {id_type}[])
RETURNS TABLE (id {id_type}, type_name text)
LANGUAGE plpgsql
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

-- Completes jobs, see the query complete_jobs. First the locks, in id order: the jobs and the first jobs of chains that close,
-- then those that go on. Whoever is naming a closing chain as a blocker at this moment is waited for, and each statement
-- in here sees what was committed before it (unless the transaction's snapshot is fixed, which is told). So no
-- dependant is missed when the chains have closed. Where it may not wait, an item whose rows somebody else has locked is left
-- out and told; and so is a chain that somebody's locked job waits for, since counting down in that job would wait.
-- Without a token a job is completed from outside, by whoever has locked it.
CREATE FUNCTION {complete}(worker text, items json, closing json, going_on json, wait boolean)
RETURNS TABLE (
    what text, id {id_type}, chain_id {id_type}, next_id {id_type}, type_name text, fixed_snapshot boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
DECLARE
    free {id_type}[];
    awaited boolean;
    closed {id_type}[];
    continues boolean := false;
BEGIN
    fixed_snapshot := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    what := 'done';
    IF $5 THEN
        PERFORM j.id
        FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text($3) AS i (id) {few}) i {few}) i
        JOIN {job} j ON j.id = i.id::{id_type}
        ORDER BY j.id
        FOR UPDATE OF j;
        IF json_array_length($4) > 0 THEN
            PERFORM j.id
            FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text($4) AS i (id) {few}) i {few}) i
            JOIN {job} j ON j.id = i.id::{id_type}
            ORDER BY j.id
            FOR NO KEY UPDATE OF j;
        END IF;
    ELSE
        free := ARRAY(
            WITH free AS MATERIALIZED (
                SELECT j.id
                FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text($3) AS i (id) {few}) i {few}) i
                JOIN {job} j ON j.id = i.id::{id_type}
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
        IF json_array_length($4) > 0 THEN
            free := free || ARRAY(
                SELECT j.id
                FROM (SELECT i.id FROM (SELECT i.id FROM json_array_elements_text($4) AS i (id) {few}) i {few}) i
                JOIN {job} j ON j.id = i.id::{id_type}
                ORDER BY j.id
                FOR NO KEY UPDATE OF j SKIP LOCKED
            );
        END IF;
        RETURN QUERY
        SELECT 'locked', i.id, i.chain_id, NULL::{id_type}, NULL::text, false
        FROM json_to_recordset($2) AS i (id {id_type}, chain_id {id_type})
        WHERE NOT (i.id = ANY (free) AND i.chain_id = ANY (free));
    END IF;
    FOR id, chain_id, next_id, awaited IN
        WITH item AS MATERIALIZED (
            SELECT *
            FROM (
                SELECT *
                FROM json_to_recordset($2) AS i (
                    id {id_type}, chain_id {id_type}, token bigint, output text, outcome text, holder text,
                    waited double precision, next_id {id_type}
                )
                WHERE $5 OR (i.id = ANY (free) AND i.chain_id = ANY (free))
                {few}
            ) i
            {few}
        ),
        done AS (
            UPDATE {job} j
            SET status = 'completed',
                output = item.output::jsonb,
                completed_at = {now},
                completed_by = $1,
                leased_by = NULL,
                leased_until = NULL,
                last_attempt_error = NULL,
                error_code = NULL,
                suspect = false,
                continued_to = item.next_id
            FROM item
            WHERE j.id = item.id
              AND (
                  (j.status = 'running' AND j.leased_by = $1 AND j.lease_token = item.token)
                  OR (item.token IS NULL AND j.status IN ('pending', 'running'))
              )
            RETURNING
                j.id, j.chain_id, j.attempt, j.last_attempt_at, j.completed_at,
                item.outcome, item.holder, item.waited, item.next_id
        ),
        attempt AS (
            INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
            SELECT
                done.id, done.attempt, coalesce($1, done.holder), done.last_attempt_at,
                CASE WHEN done.waited IS NOT NULL
                    THEN least(done.last_attempt_at + make_interval(secs => done.waited), done.completed_at) END,
                done.completed_at, done.outcome
            FROM done
            WHERE done.outcome IS NOT NULL
        )
        SELECT
            done.id, done.chain_id, done.next_id,
            done.next_id IS NULL AND (SELECT count(*) FROM {job_blocker} b WHERE b.blocked_by_chain_id = done.chain_id) > 0
        FROM done
    LOOP
        RETURN NEXT;
        IF awaited THEN
            closed := array_append(closed, chain_id);
        END IF;
        continues := continues OR next_id IS NOT NULL;
    END LOOP;
    IF continues THEN
        INSERT INTO {job} (
            id, type_name, chain_id, chain_type_name, chain_index, input, status, priority, created_at, scheduled_at,
            max_attempts, deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context,
            trace_context
        )
        SELECT
            item.next_id, item.next_type, j.chain_id, j.chain_type_name, j.chain_index + 1, item.next_input::jsonb,
            CASE WHEN item.next_blockers > 0 THEN 'blocked' ELSE 'pending' END::{job_status},
            coalesce(item.next_priority, j.priority), {now},
            greatest({now}, coalesce(item.next_at, {now} + make_interval(secs => item.next_after))),
            item.next_max_attempts, j.deduplication_key, j.chain_created_at, item.next_blockers, item.next_blockers,
            j.chain_trace_context, item.next_trace
        FROM (
            SELECT *
            FROM (
                SELECT *
                FROM json_to_recordset($2) AS i (
                    id {id_type}, next_id {id_type}, next_type text, next_input text, next_priority integer,
                    next_at timestamptz, next_after double precision, next_max_attempts integer, next_blockers integer,
                    next_trace text
                )
                WHERE i.next_id IS NOT NULL
                {few}
            ) i
            {few}
        ) item
        JOIN {job} j ON j.id = item.id AND j.continued_to = item.next_id;
    END IF;
    IF closed IS NOT NULL THEN
        RETURN QUERY
        SELECT 'freed', freed.id, NULL::{id_type}, NULL::{id_type}, freed.type_name, false
        FROM {release}(closed) freed;
    END IF;
END
$function$;

-- Completes one job, and continues its chain or closes it: what {complete} does, in statements for one row, since to set up
-- those for many takes longer than to run them. Its locks wait. `strict` is for a caller who sends COMMIT along: whatever
-- should keep the transaction from being committed is an error then.
CREATE FUNCTION {complete_one}(
    worker text, job {id_type}, root {id_type}, token bigint, result text, ending text, holder text, waited double precision,
    strict boolean, following {id_type}, next_type text, next_input text, next_priority integer, next_at timestamptz,
    next_after double precision, next_max_attempts integer, next_blockers integer, next_trace text
)
RETURNS TABLE (
    what text, id {id_type}, chain_id {id_type}, next_id {id_type}, type_name text, fixed_snapshot boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off
AS $function$
#variable_conflict use_column
DECLARE
    done record;
BEGIN
    fixed_snapshot := current_setting('transaction_isolation') IN ('repeatable read', 'serializable');
    IF strict AND fixed_snapshot AND following IS NULL THEN
        RAISE EXCEPTION 'the snapshot of this transaction is fixed' USING ERRCODE = 'QU002';
    END IF;
    IF following IS NULL THEN
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
    UPDATE {job} j
    SET status = 'completed',
        output = result::jsonb,
        completed_at = {now},
        completed_by = worker,
        leased_by = NULL,
        leased_until = NULL,
        last_attempt_error = NULL,
        error_code = NULL,
        suspect = false,
        continued_to = following
    WHERE j.id = job
      AND (
          (j.status = 'running' AND j.leased_by = worker AND j.lease_token = token)
          OR (token IS NULL AND j.status IN ('pending', 'running'))
      )
    RETURNING
        j.attempt, j.last_attempt_at, j.chain_type_name, j.chain_index, j.priority, j.deduplication_key, j.chain_created_at,
        j.chain_trace_context
    INTO done;
    IF NOT FOUND THEN
        IF strict THEN
            RAISE EXCEPTION 'the lease of this job is lost' USING ERRCODE = 'QU001';
        END IF;
        RETURN;
    END IF;
    IF ending IS NOT NULL THEN
        INSERT INTO {job_attempt} (job_id, attempt, worker_id, claimed_at, started_at, finished_at, outcome)
        VALUES (
            job, done.attempt, coalesce(worker, holder), done.last_attempt_at,
            CASE WHEN waited IS NOT NULL THEN least(done.last_attempt_at + make_interval(secs => waited), {now}) END,
            {now}, ending
        );
    END IF;
    what := 'done';
    id := job;
    chain_id := root;
    next_id := following;
    RETURN NEXT;
    IF following IS NOT NULL THEN
        INSERT INTO {job} (
            id, type_name, chain_id, chain_type_name, chain_index, input, status, priority, created_at, scheduled_at,
            max_attempts, deduplication_key, chain_created_at, open_blockers, blocker_count, chain_trace_context, trace_context
        )
        VALUES (
            following, next_type, root, done.chain_type_name, done.chain_index + 1, next_input::jsonb,
            CASE WHEN next_blockers > 0 THEN 'blocked' ELSE 'pending' END::{job_status},
            coalesce(next_priority, done.priority), {now},
            greatest({now}, coalesce(next_at, {now} + make_interval(secs => next_after))),
            next_max_attempts, done.deduplication_key, done.chain_created_at, next_blockers, next_blockers,
            done.chain_trace_context, next_trace
        );
    ELSIF (SELECT count(*) FROM {job_blocker} b WHERE b.blocked_by_chain_id = root) > 0 THEN
        RETURN QUERY
        SELECT 'freed', freed.id, NULL::{id_type}, NULL::{id_type}, freed.type_name, false
        FROM {release}(ARRAY[root]) freed;
    END IF;
END
$function$;
