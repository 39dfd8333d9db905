-- What the keys of the task's steps begin with, before a colon and the name of the step. Null: its id, as of every task before.
ALTER TABLE task_details ADD COLUMN key_prefix TEXT;
-- Of an instance that reads it. On PostgreSQL older ones may be on record.
ALTER TABLE instances ADD COLUMN reads_key_prefix INTEGER;
