-- What was sent and what came back in attempts of steps: of all that failed, and of those that succeeded as the settings say.
-- Nothing refers to the task, as in the history: an instance of an earlier version that deletes the task leaves them, and
-- they are deleted when their own time is over.
CREATE TABLE attempts (
    task_id   uuid    NOT NULL,
    idx       bigint  NOT NULL,
    attempt   bigint  NOT NULL,
    ended_at  bigint  NOT NULL,
    succeeded bigint NOT NULL,
    bytes     bigint  NOT NULL,
    record    text    NOT NULL,
    PRIMARY KEY (task_id, idx, attempt, ended_at)
);
CREATE INDEX attempts_by_end ON attempts (ended_at);
CREATE INDEX attempts_succeeded ON attempts (ended_at) WHERE succeeded = 1;

-- The bytes of all recorded attempts of a task.
CREATE TABLE attempt_usage (
    task_id uuid   NOT NULL PRIMARY KEY,
    bytes   bigint NOT NULL
);

-- The bytes of the attempts that ended in an hour. Deleting a task does not change them; they are deleted when their hour is.
-- Instances add to different rows, so that they do not wait for each other.
CREATE TABLE attempt_hours (
    hour      bigint   NOT NULL,
    succeeded bigint NOT NULL,
    shard     bigint   NOT NULL,
    bytes     bigint   NOT NULL,
    PRIMARY KEY (hour, succeeded, shard)
);
ALTER TABLE attempts SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    toast.autovacuum_vacuum_scale_factor = 0.02
);
