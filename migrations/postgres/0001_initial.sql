-- Times are milliseconds since the Unix epoch, of this database's clock; ids are UUIDv7; payloads are
-- JSON as text, because they come back byte for byte and nothing here looks inside. Names and keys are
-- compared byte by byte, whatever the locale of the database. States are words, so that a person with
-- psql can read the record.

CREATE TABLE workflows (
    name       text COLLATE "C" NOT NULL,
    version    bigint           NOT NULL,
    body       text             NOT NULL,
    created_at bigint           NOT NULL,
    PRIMARY KEY (name, version)
);

CREATE TABLE agents (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    spec       text             NOT NULL,
    updated_at bigint           NOT NULL
);

-- fillfactor: a running task is updated with every step. A change that only counts its version up finds
-- room on the same page then, and touches no index (HOT).
-- autovacuum: dead versions come by the thousand a second, and each is one that a scan of an index has
-- to step over. The usual fifth of the table is far too late once millions of ended tasks are in it: a
-- hundredth, and without the pauses that would let it fall behind.
CREATE TABLE tasks (
    id               uuid   NOT NULL PRIMARY KEY,
    "key"            text COLLATE "C",
    workflow         text COLLATE "C",
    workflow_version bigint,
    labels           text   NOT NULL,
    priority         bigint NOT NULL,
    complete_within  bigint,          -- milliseconds
    created_at       bigint NOT NULL,
    trace_id         text,
    version          bigint NOT NULL, -- every save compares and sets it
    state            text COLLATE "C" NOT NULL,
    paused           boolean NOT NULL,
    complete_by      bigint,
    overdue_at       bigint,          -- complete_by while anything is live, else null
    ended_at         bigint,
    error            text
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

-- Lists by state. Nearly every task of a long-lived database is processed: listing those follows the
-- primary key, so their entries are left out and the happy path never writes here on its way out.
CREATE INDEX tasks_by_state ON tasks (state, id) WHERE state <> 'processed';
CREATE INDEX tasks_by_key ON tasks ("key", id) WHERE "key" IS NOT NULL;
CREATE INDEX tasks_by_workflow ON tasks (workflow, id) WHERE workflow IS NOT NULL;
CREATE INDEX tasks_overdue ON tasks (overdue_at) WHERE overdue_at IS NOT NULL;
CREATE INDEX tasks_ended ON tasks (ended_at) WHERE ended_at IS NOT NULL;

-- What never changes and may be large, apart from the record that every change copies. It has no foreign
-- key to the task, nor have steps and history: that would cost a look-up and a lock for each row. A row is
-- only written while its task's row is locked by the same transaction, and purging locks it as well.
CREATE TABLE task_details (
    task_id uuid NOT NULL PRIMARY KEY,
    steps   text,                     -- the definition, where it was submitted in place
    input   text NOT NULL
);

CREATE TABLE task_labels (
    label   text COLLATE "C" NOT NULL,
    value   text COLLATE "C" NOT NULL,
    task_id uuid NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    PRIMARY KEY (label, value, task_id)
);
CREATE INDEX task_labels_by_task ON task_labels (task_id);

CREATE TABLE steps (
    task_id       uuid   NOT NULL,
    idx           bigint NOT NULL,    -- the step's place in the definition
    name          text COLLATE "C" NOT NULL,
    agent         text COLLATE "C" NOT NULL,
    priority      bigint NOT NULL,
    state         text COLLATE "C" NOT NULL,
    attempt       bigint NOT NULL,
    failure_count bigint NOT NULL,
    extended      bigint NOT NULL,
    locked_by     text COLLATE "C",
    complete_by   bigint,
    ready_at      bigint,
    due_at        bigint,             -- ready_at while the step may be claimed, else null
    queued        smallint NOT NULL,  -- 1: stands in its agent's line; 0: not due yet
    started_at    bigint,
    ended_at      bigint,
    body          text,
    output        text,
    error         text,
    last_fault    text,
    PRIMARY KEY (task_id, idx)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

-- Each agent's line, by priority, then by the task's age (ids sort by time). Finished work is never in it.
CREATE INDEX steps_line ON steps (agent, priority DESC, task_id, idx) WHERE due_at IS NOT NULL AND queued = 1;
-- Steps that wait for a time, until they join their line.
CREATE INDEX steps_delayed ON steps (due_at) WHERE due_at IS NOT NULL AND queued = 0;
-- What the supervisor looks at: running steps by their complete-by; and who holds them, read from the
-- index alone, to find those whose instance is lost.
CREATE INDEX steps_processing ON steps (complete_by, locked_by) WHERE state = 'processing';

CREATE TABLE history (
    task_id uuid   NOT NULL,
    version bigint NOT NULL,          -- the task's version that this change made
    at      bigint NOT NULL,
    events  text   NOT NULL,          -- a JSON array: all that happened in one change
    PRIMARY KEY (task_id, version)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE TABLE alerts (
    id              uuid   NOT NULL PRIMARY KEY,
    task_id         uuid   NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    idx             bigint NOT NULL,
    step            text   NOT NULL,
    kind            text   NOT NULL,
    message         text   NOT NULL,
    state           text COLLATE "C" NOT NULL, -- open, acknowledged, closed
    raised_at       bigint NOT NULL,
    acknowledged_at bigint,
    acknowledged_by text,
    closed_at       bigint
);
-- While an alert for a step is not closed, no second one is raised.
CREATE UNIQUE INDEX alerts_unclosed ON alerts (task_id, idx) WHERE state <> 'closed';
CREATE INDEX alerts_by_task ON alerts (task_id);

CREATE TABLE idempotency_keys (
    "key"       text COLLATE "C" NOT NULL PRIMARY KEY,
    fingerprint text   NOT NULL,
    task_id     uuid   NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    created_at  bigint NOT NULL
);
CREATE INDEX idempotency_keys_by_task ON idempotency_keys (task_id);

-- Who runs. An instance's own row is its lease on its id: while `until` has not come, the steps that it
-- holds are its own. `until` moves with every renewal.
CREATE TABLE instances (
    id          text COLLATE "C" NOT NULL PRIMARY KEY,
    incarnation uuid   NOT NULL,      -- the one process that may renew it
    term        bigint NOT NULL,      -- how many processes have had this id
    until       bigint NOT NULL,
    started_at  bigint NOT NULL,
    version     text   NOT NULL,
    process     text   NOT NULL       -- which process on which machine
) WITH (fillfactor = 50);

-- One row: the lease of the one instance that supervises.
CREATE TABLE supervisor (
    id          bigint NOT NULL PRIMARY KEY CHECK (id = 1),
    instance    text   NOT NULL,
    incarnation uuid   NOT NULL,
    term        bigint NOT NULL,      -- how many have supervised; the history names it
    until       bigint NOT NULL
) WITH (fillfactor = 50);

-- Rows that readiness checks write: they show that the store can commit. More than one, so that
-- instances do not wait for each other.
CREATE TABLE heartbeat (
    id bigint NOT NULL PRIMARY KEY,
    at bigint NOT NULL
) WITH (fillfactor = 50);
