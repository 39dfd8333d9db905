-- Times are milliseconds since the Unix epoch; ids are UUIDv7 as 16-byte blobs; payloads are JSON text.
-- States are words, so that a person with the sqlite3 shell can read the record.

CREATE TABLE workflows (
    name       TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    body       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (name, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE agents (
    name       TEXT    NOT NULL PRIMARY KEY,
    spec       TEXT    NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tasks (
    id               BLOB    NOT NULL PRIMARY KEY,
    "key"            TEXT,
    workflow         TEXT,
    workflow_version INTEGER,
    labels           TEXT    NOT NULL,
    priority         INTEGER NOT NULL,
    complete_within  INTEGER,          -- milliseconds
    created_at       INTEGER NOT NULL,
    trace_id         TEXT,
    version          INTEGER NOT NULL, -- every save compares and sets it
    state            TEXT    NOT NULL,
    paused           INTEGER NOT NULL,
    complete_by      INTEGER,
    overdue_at       INTEGER,          -- complete_by while anything is live, else null
    ended_at         INTEGER,
    error            TEXT
) STRICT, WITHOUT ROWID;

-- Lists by state. Nearly every task of a long-lived database is processed: listing those follows the
-- primary key, so their entries are left out and the happy path never writes here on its way out.
CREATE INDEX tasks_by_state ON tasks (state, id) WHERE state <> 'processed';
CREATE INDEX tasks_by_key ON tasks ("key", id) WHERE "key" IS NOT NULL;
CREATE INDEX tasks_by_workflow ON tasks (workflow, id) WHERE workflow IS NOT NULL;
CREATE INDEX tasks_overdue ON tasks (overdue_at) WHERE overdue_at IS NOT NULL;
CREATE INDEX tasks_ended ON tasks (ended_at) WHERE ended_at IS NOT NULL;

-- What never changes and may be large, apart from the record that every change rewrites.
CREATE TABLE task_details (
    task_id BLOB NOT NULL PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
    steps   TEXT,                      -- the definition, where it was submitted in place
    input   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE task_labels (
    label   TEXT NOT NULL,
    value   TEXT NOT NULL,
    task_id BLOB NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    PRIMARY KEY (label, value, task_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX task_labels_by_task ON task_labels (task_id);

CREATE TABLE steps (
    task_id       BLOB    NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    idx           INTEGER NOT NULL,    -- the step's place in the definition
    name          TEXT    NOT NULL,
    agent         TEXT    NOT NULL,
    priority      INTEGER NOT NULL,
    state         TEXT    NOT NULL,
    attempt       INTEGER NOT NULL,
    failure_count INTEGER NOT NULL,
    extended      INTEGER NOT NULL,
    locked_by     TEXT,
    complete_by   INTEGER,
    ready_at      INTEGER,
    due_at        INTEGER,             -- ready_at while the step may be claimed, else null
    queued        INTEGER NOT NULL,    -- 1: stands in its agent's line; 0: not due yet
    started_at    INTEGER,
    ended_at      INTEGER,
    body          TEXT,
    output        TEXT,
    error         TEXT,
    last_fault    TEXT,
    PRIMARY KEY (task_id, idx)
) STRICT, WITHOUT ROWID;

-- Each agent's line, by priority, then by the task's age (ids sort by time). Finished work is never in it.
CREATE INDEX steps_line ON steps (agent, priority DESC, task_id, idx) WHERE due_at IS NOT NULL AND queued = 1;
-- Steps that wait for a time, until they join their line.
CREATE INDEX steps_delayed ON steps (due_at) WHERE due_at IS NOT NULL AND queued = 0;
-- What the supervisor looks at: running steps by their complete-by.
CREATE INDEX steps_processing ON steps (complete_by) WHERE state = 'processing';

-- Rows are appended, so that a commit writes a few pages at the end instead of one for each task: only
-- the small entries of the index go to where the task is.
CREATE TABLE history (
    seq     INTEGER NOT NULL PRIMARY KEY,
    task_id BLOB    NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    version INTEGER NOT NULL,          -- the task's version that this change made
    at      INTEGER NOT NULL,
    events  TEXT    NOT NULL           -- a JSON array: all that happened in one change
) STRICT;
CREATE UNIQUE INDEX history_by_task ON history (task_id, version);

CREATE TABLE alerts (
    id              BLOB    NOT NULL PRIMARY KEY,
    task_id         BLOB    NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    idx             INTEGER NOT NULL,
    step            TEXT    NOT NULL,
    kind            TEXT    NOT NULL,
    message         TEXT    NOT NULL,
    state           TEXT    NOT NULL,  -- open, acknowledged, closed
    raised_at       INTEGER NOT NULL,
    acknowledged_at INTEGER,
    acknowledged_by TEXT,
    closed_at       INTEGER
) STRICT, WITHOUT ROWID;
-- While an alert for a step is not closed, no second one is raised.
CREATE UNIQUE INDEX alerts_unclosed ON alerts (task_id, idx) WHERE state <> 'closed';
CREATE INDEX alerts_by_task ON alerts (task_id);

CREATE TABLE idempotency_keys (
    "key"       TEXT    NOT NULL PRIMARY KEY,
    fingerprint TEXT    NOT NULL,
    task_id     BLOB    NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    created_at  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_by_task ON idempotency_keys (task_id);

-- One row that a readiness check writes: it shows that the store can commit.
CREATE TABLE heartbeat (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    at INTEGER NOT NULL
) STRICT;
