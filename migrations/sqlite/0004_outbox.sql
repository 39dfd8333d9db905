-- Where the submitter is told what becomes of the task, as JSON.
ALTER TABLE task_details ADD COLUMN reply_to TEXT;

-- The outbox. A message is written with the change that it tells of, and deleted once it is delivered.
-- It stands by itself: a task that is purged meanwhile does not take its messages along.
CREATE TABLE messages (
    number     INTEGER NOT NULL PRIMARY KEY,
    id         BLOB    NOT NULL UNIQUE,
    receiver   TEXT    NOT NULL,       -- a configured name, or the origin of `url`
    subject    BLOB    NOT NULL,       -- the task; of an alert without one, the alert
    place      INTEGER NOT NULL,       -- in its queue
    task_id    BLOB,
    kind       TEXT    NOT NULL,
    url        TEXT,
    body       TEXT    NOT NULL,
    created_at INTEGER NOT NULL,
    state      TEXT    NOT NULL,       -- pending, dead
    tries      INTEGER NOT NULL,       -- of a dead one; while it is pending its queue counts
    error      TEXT,
    died_at    INTEGER                 -- also of one that is being redelivered
) STRICT;
CREATE INDEX messages_in_queue ON messages (receiver, subject, place, id) WHERE state = 'pending';
-- Dead letters, and those on their way again.
CREATE INDEX messages_died ON messages (died_at) WHERE died_at IS NOT NULL;
CREATE INDEX messages_died_by_receiver ON messages (receiver, id) WHERE died_at IS NOT NULL;

-- One row for each receiver and subject with messages to be delivered: they go one after the other.
-- Whoever adds to a queue or takes from it locks its row.
CREATE TABLE queues (
    receiver  TEXT    NOT NULL,
    subject   BLOB    NOT NULL,
    due_at    INTEGER NOT NULL,        -- when its first message may be tried; held, when it is let go
    locked_by TEXT,                    -- the instance that tries it
    tries     INTEGER NOT NULL,        -- of its first message
    since     INTEGER,                 -- the first of them
    error     TEXT,                    -- how the last of them failed
    PRIMARY KEY (receiver, subject)
) STRICT, WITHOUT ROWID;
CREATE INDEX queues_due ON queues (receiver, due_at);

-- Alerts are about a step of a task, or about a receiver that messages cannot be delivered to.
CREATE TABLE alerts_of_receivers_too (
    id              BLOB    NOT NULL PRIMARY KEY,
    task_id         BLOB    REFERENCES tasks (id) ON DELETE CASCADE,
    idx             INTEGER,
    step            TEXT,
    receiver        TEXT,
    kind            TEXT    NOT NULL,
    message         TEXT    NOT NULL,
    state           TEXT    NOT NULL,  -- open, acknowledged, closed
    raised_at       INTEGER NOT NULL,
    acknowledged_at INTEGER,
    acknowledged_by TEXT,
    closed_at       INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO alerts_of_receivers_too (id, task_id, idx, step, kind, message, state, raised_at, acknowledged_at,
                                     acknowledged_by, closed_at)
SELECT id, task_id, idx, step, kind, message, state, raised_at, acknowledged_at, acknowledged_by, closed_at
FROM alerts;
DROP TABLE alerts;
ALTER TABLE alerts_of_receivers_too RENAME TO alerts;
-- While an alert for a step or a receiver is not closed, no second one is raised.
CREATE UNIQUE INDEX alerts_unclosed ON alerts (task_id, idx) WHERE state <> 'closed';
CREATE UNIQUE INDEX alerts_unclosed_of_receiver ON alerts (receiver) WHERE receiver IS NOT NULL AND state <> 'closed';
CREATE INDEX alerts_by_task ON alerts (task_id);
