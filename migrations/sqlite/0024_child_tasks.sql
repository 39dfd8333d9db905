-- Tasks that are done for a step of another task: the parent, the step and its attempt that made the child, and the task above
-- all of them. A row is saved before that of its task, in the same transaction.
CREATE TABLE child_tasks (
    child   BLOB    NOT NULL PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    parent  BLOB    NOT NULL,
    idx     INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    root    BLOB    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX child_tasks_of_step ON child_tasks (parent, idx, attempt);
CREATE INDEX child_tasks_of_parent ON child_tasks (parent, child);
CREATE INDEX child_tasks_of_root ON child_tasks (root);

-- The steps whose records are to be compared with those of their children, because one of them has changed. Another change
-- has another mark, so that a comparison that began before it does not count for it.
CREATE TABLE child_marks (
    parent BLOB    NOT NULL,
    idx    INTEGER NOT NULL,
    mark   INTEGER NOT NULL,
    due_at INTEGER NOT NULL, -- until then it is left to the instance that saved the change
    PRIMARY KEY (parent, idx)
) STRICT, WITHOUT ROWID;
CREATE INDEX child_marks_due ON child_marks (due_at);

ALTER TABLE task_details ADD COLUMN parent TEXT; -- JSON; null for tasks that were submitted
