-- How often in a row a job was lost with its worker, and how often in a row what went wrong was not held against it.
ALTER TABLE {job}
    ADD COLUMN losses integer NOT NULL DEFAULT 0,
    ADD COLUMN excuses integer NOT NULL DEFAULT 0;
