-- Tasks that are done for a step of another task: the parent, the step and its attempt that made the child, and the task above
-- all of them.
CREATE TABLE child_tasks (
    child   uuid   PRIMARY KEY,
    parent  uuid   NOT NULL,
    idx     bigint NOT NULL,
    attempt bigint NOT NULL,
    root    uuid   NOT NULL
);
CREATE UNIQUE INDEX child_tasks_of_step ON child_tasks (parent, idx, attempt);
CREATE INDEX child_tasks_of_parent ON child_tasks (parent, child);
CREATE INDEX child_tasks_of_root ON child_tasks (root);

-- The steps whose records are to be compared with those of their children, because one of them has changed. Another change
-- has another mark, so that a comparison that began before it does not count for it.
CREATE TABLE child_marks (
    parent uuid   NOT NULL,
    idx    bigint NOT NULL,
    mark   bigint NOT NULL,
    due_at bigint NOT NULL, -- until then it is left to the instance that saved the change
    PRIMARY KEY (parent, idx)
);
CREATE INDEX child_marks_due ON child_marks (due_at);

ALTER TABLE task_details ADD COLUMN parent text; -- JSON; null for tasks that were submitted
