-- Which versions of workflows were made active, by whom and why. The last one of a workflow is active; of a workflow that has
-- none its newest version is.
CREATE TABLE workflow_activations (
    name         TEXT    NOT NULL,
    number       INTEGER NOT NULL, -- counted from 1
    version      INTEGER NOT NULL,
    from_version INTEGER NOT NULL, -- the one that was active before
    at           INTEGER NOT NULL,
    activated_by TEXT    NOT NULL,
    reason       TEXT,
    PRIMARY KEY (name, number)
) STRICT, WITHOUT ROWID;
-- The names of the task's steps by their index, as JSON, if it has had another version of its workflow before, and the order
-- of its steps is not that of its version.
ALTER TABLE task_details ADD COLUMN layout TEXT;
