-- How often in a row a job was lost with its worker, and how often in a row what went wrong was not held against it.
ALTER TABLE {job} ADD COLUMN losses INTEGER NOT NULL DEFAULT 0;
ALTER TABLE {job} ADD COLUMN excuses INTEGER NOT NULL DEFAULT 0;
