-- That a task is to be undone and why, as JSON; null while it is not.
ALTER TABLE tasks ADD COLUMN undo TEXT;
-- What was said for all steps that were submitted in place, as JSON.
ALTER TABLE task_details ADD COLUMN policies TEXT;
-- Null, 'unknown' where the step may have taken effect, 'probing' while its service is asked about it.
ALTER TABLE steps ADD COLUMN doubt TEXT;
