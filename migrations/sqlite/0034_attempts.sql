-- What was sent and what came back in attempts of steps: of all that failed, and of those that succeeded as the settings say.
-- Rows are appended, so that an attempt writes a few pages at the end of the table and one entry of each index.
CREATE TABLE attempts (
    task_id   BLOB    NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    idx       INTEGER NOT NULL,
    attempt   INTEGER NOT NULL,
    ended_at  INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    record    TEXT    NOT NULL
) STRICT;
CREATE UNIQUE INDEX attempts_by_step ON attempts (task_id, idx, attempt, ended_at);
CREATE INDEX attempts_by_end ON attempts (ended_at);
CREATE INDEX attempts_succeeded ON attempts (ended_at) WHERE succeeded = 1;

-- The bytes of all recorded attempts of a task.
CREATE TABLE attempt_usage (
    task_id BLOB    NOT NULL PRIMARY KEY REFERENCES tasks (id) ON DELETE CASCADE,
    bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The bytes of the attempts that ended in an hour. Deleting a task does not change them; they are deleted when their hour is.
CREATE TABLE attempt_hours (
    hour      INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    shard     INTEGER NOT NULL,
    bytes     INTEGER NOT NULL,
    PRIMARY KEY (hour, succeeded, shard)
) STRICT, WITHOUT ROWID;
