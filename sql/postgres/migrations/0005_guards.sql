-- Rows that no worker could read are refused where they are written, and the functions of the first release look for nothing in
-- the schemas of others.

-- First what is there already: a row that does not fulfil a condition could not be changed any more, not even to fail.
UPDATE {job} j
SET created_at = least(greatest(j.created_at, '0001-01-02 00:00:00+00'), '9999-12-31 00:00:00+00'),
    scheduled_at = least(greatest(j.scheduled_at, '0001-01-02 00:00:00+00'), '9999-12-31 00:00:00+00'),
    chain_created_at = least(greatest(j.chain_created_at, '0001-01-02 00:00:00+00'), '9999-12-31 00:00:00+00'),
    completed_at = CASE WHEN j.completed_at > '0001-01-01 00:00:00+00' AND j.completed_at < '9999-12-31 00:00:00+00' THEN j.completed_at END,
    last_attempt_at = CASE WHEN j.last_attempt_at > '0001-01-01 00:00:00+00' AND j.last_attempt_at < '9999-12-31 00:00:00+00' THEN j.last_attempt_at END
WHERE NOT (
    j.created_at > '0001-01-01 00:00:00+00' AND j.created_at < '9999-12-31 23:59:59+00'
    AND j.scheduled_at > '0001-01-01 00:00:00+00' AND j.scheduled_at < '10000-01-01 00:00:00+00'
    AND j.chain_created_at > '0001-01-01 00:00:00+00' AND j.chain_created_at < '9999-12-31 23:59:59+00'
    AND coalesce(j.completed_at > '0001-01-01 00:00:00+00' AND j.completed_at < '10000-01-01 00:00:00+00', true)
    AND coalesce(j.last_attempt_at > '0001-01-01 00:00:00+00' AND j.last_attempt_at < '10000-01-01 00:00:00+00', true)
);

ALTER TABLE {job} ADD CONSTRAINT "{prefix}job_readable" CHECK (
    created_at > '0001-01-01 00:00:00+00' AND created_at < '10000-01-01 00:00:00+00'
    AND scheduled_at > '0001-01-01 00:00:00+00' AND scheduled_at < '10000-01-01 00:00:00+00'
    AND chain_created_at > '0001-01-01 00:00:00+00' AND chain_created_at < '10000-01-01 00:00:00+00'
    AND completed_at > '0001-01-01 00:00:00+00' AND completed_at < '10000-01-01 00:00:00+00'
    AND last_attempt_at > '0001-01-01 00:00:00+00' AND last_attempt_at < '10000-01-01 00:00:00+00'
    AND attempt >= 0
) NOT VALID;

ALTER FUNCTION {release}({id_type}[]) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION {complete}(text, json, json, json, boolean) SET search_path = pg_catalog, pg_temp;
ALTER FUNCTION {complete_one}(
    text, {id_type}, {id_type}, bigint, text, text, text, double precision, boolean, {id_type}, text, text, integer, timestamptz,
    double precision, integer, integer, text
) SET search_path = pg_catalog, pg_temp;
