-- name: lock_rows
-- params: closing, changing, wait
-- Lock jobs in id order: those that are about to close a chain, with the first jobs of these chains, and those that only
-- change. Without waiting, what somebody else has locked is left out.
SELECT unnest({lock_jobs}(:closing::{id_type}[], :changing::{id_type}[], :wait::boolean));

-- name: complete_jobs
-- params: worker, items, outputs, closing, continuing, wait
-- Complete jobs, insert their continuations, and release what waited for chains that end. A job whose lease is no longer held
-- is told as lost, and nothing is written for it. Of what went well nothing comes back.
-- A function, since several statements in one round trip must each see what was committed before it.
SELECT c.what, c.id, c.type_name
FROM {complete_jobs}(
    :worker::text, :items::json, :outputs::text[], :closing::{id_type}[], :continuing::{id_type}[], :wait::boolean
) c;

-- name: complete_job
-- params: worker, id, chain_id, token, output, outcome, holder, waited, strict
-- Complete one job that closes its chain, in half the time that complete_jobs would take.
SELECT c.what, c.id, c.type_name
FROM {complete_job}(
    :worker::text, :id::{id_type}, :chain_id::{id_type}, :token::bigint, :output::text, :outcome::text, :holder::text,
    :waited::double precision, :strict::boolean, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
) c;

-- name: continue_job
-- params: worker, id, chain_id, token, output, outcome, holder, waited, strict, next_id, next_type, next_input, next_priority, next_at, next_after, next_max_attempts, next_blockers, next_trace
-- Complete one job and continue its chain, in half the time that complete_jobs would take.
SELECT c.what, c.id, c.type_name
FROM {complete_job}(
    :worker::text, :id::{id_type}, :chain_id::{id_type}, :token::bigint, :output::text, :outcome::text, :holder::text,
    :waited::double precision, :strict::boolean, :next_id::{id_type}, :next_type::text, :next_input::text,
    :next_priority::integer, :next_at::timestamptz, :next_after::double precision, :next_max_attempts::integer,
    :next_blockers::integer, :next_trace::text
) c;
