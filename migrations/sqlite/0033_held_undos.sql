-- Of an instance that keeps an undo by policy waiting until an operator resumes the task. On PostgreSQL older ones may be on record.
ALTER TABLE instances ADD COLUMN holds_undos INTEGER;
