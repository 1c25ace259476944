-- name: find_ids
-- params: part, limit
-- The ids that begin or end so. It goes through the ids of all jobs: for a person who types one, not for programs.
SELECT j.id
FROM {job} j
WHERE left(j.id::text, length(:part::text)) = :part::text OR right(j.id::text, length(:part::text)) = :part::text
LIMIT :limit;
