-- How many steps of each agent a process has completed since it began, and how long they took.
CREATE TABLE counted_steps (
    instance TEXT NOT NULL PRIMARY KEY,
    at       INTEGER NOT NULL,
    counted  TEXT NOT NULL -- JSON
) STRICT, WITHOUT ROWID;

-- Tasks that will be late by what is known. A row is deleted some time after its task has ended.
CREATE TABLE tasks_at_risk (
    task_id       BLOB NOT NULL PRIMARY KEY,
    predicted_end INTEGER, -- NULL: not before an operator resumes the agent
    agent         TEXT NOT NULL,
    since         INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
