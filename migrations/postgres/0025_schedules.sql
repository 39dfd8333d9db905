-- Schedules: when they fire, the task that they submit, and what has become of them, as JSON.
CREATE TABLE schedules (
    name        text NOT NULL PRIMARY KEY,
    version     bigint NOT NULL, -- changes with every change of the row
    put_version bigint NOT NULL, -- changes with what callers change
    spec        text NOT NULL,
    submission  text NOT NULL,
    state       text NOT NULL,
    handled_at  bigint NOT NULL, -- every fire time up to it was handled
    next_at     bigint,          -- when to look at it again
    created_at  bigint NOT NULL,
    created_by  text NOT NULL,
    updated_at  bigint NOT NULL,
    updated_by  text NOT NULL
);
CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL;
CREATE INDEX schedules_handled ON schedules (handled_at);

-- The last runs of each schedule.
CREATE TABLE schedule_runs (
    schedule    text NOT NULL,
    number      bigint NOT NULL,
    state       text NOT NULL,
    request_key text, -- the Idempotency-Key of the request that asked for it
    run         text NOT NULL,
    PRIMARY KEY (schedule, number)
);
