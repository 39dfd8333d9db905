-- Schedules: when they fire, the task that they submit, and what has become of them, as JSON.
CREATE TABLE schedules (
    name        TEXT NOT NULL PRIMARY KEY,
    version     INTEGER NOT NULL, -- changes with every change of the row
    put_version INTEGER NOT NULL, -- changes with what callers change
    spec        TEXT NOT NULL,
    submission  TEXT NOT NULL,
    state       TEXT NOT NULL,
    handled_at  INTEGER NOT NULL, -- every fire time up to it was handled
    next_at     INTEGER,          -- when to look at it again
    created_at  INTEGER NOT NULL,
    created_by  TEXT NOT NULL,
    updated_at  INTEGER NOT NULL,
    updated_by  TEXT NOT NULL
) STRICT;
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_handled ON schedules (handled_at);

-- The last runs of each schedule.
CREATE TABLE schedule_runs (
    schedule    TEXT NOT NULL,
    number      INTEGER NOT NULL,
    state       TEXT NOT NULL,
    request_key TEXT, -- the Idempotency-Key of the request that asked for it
    run         TEXT NOT NULL,
    PRIMARY KEY (schedule, number)
) STRICT, WITHOUT ROWID;
