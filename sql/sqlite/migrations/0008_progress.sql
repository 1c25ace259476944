-- How far a job is, as its handler has told.
ALTER TABLE {job} ADD COLUMN progress_fraction REAL;
ALTER TABLE {job} ADD COLUMN progress_message TEXT;
