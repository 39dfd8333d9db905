-- Of an instance that keeps an undo by policy waiting until an operator resumes the task. Null of an older one that is on record by
-- now, and no other comes.
ALTER TABLE instances ADD COLUMN holds_undos bigint;
ALTER TABLE instances ALTER COLUMN holds_undos SET DEFAULT 0;
ALTER TABLE instances DROP CONSTRAINT older_instances_cannot_join;
ALTER TABLE instances ADD CONSTRAINT older_instances_cannot_join CHECK (holds_undos IS NULL OR holds_undos = 1);
