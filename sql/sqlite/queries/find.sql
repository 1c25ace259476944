-- name: find_ids
-- params: part, limit
-- The ids that begin or end so. It goes through the ids of all jobs: for a person who types one, not for programs.
SELECT j.id
FROM {job} j
WHERE substr(CAST(j.id AS TEXT), 1, length(:part)) = :part OR substr(CAST(j.id AS TEXT), -length(:part)) = :part
LIMIT :limit;
