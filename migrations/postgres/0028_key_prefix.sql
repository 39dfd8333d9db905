-- What the keys of the task's steps begin with, before a colon and the name of the step. Null: its id, as of every task before.
ALTER TABLE task_details ADD COLUMN key_prefix text;
-- Of an instance that reads it; null of an older one that is on record by now, and no other comes.
ALTER TABLE instances ADD COLUMN reads_key_prefix bigint;
ALTER TABLE instances ALTER COLUMN reads_key_prefix SET DEFAULT 0;
ALTER TABLE instances DROP CONSTRAINT older_instances_cannot_join;
ALTER TABLE instances ADD CONSTRAINT older_instances_cannot_join CHECK (reads_key_prefix IS NULL OR reads_key_prefix = 1);
