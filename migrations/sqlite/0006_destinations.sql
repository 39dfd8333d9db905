-- Failures and pauses are kept for each destination: the URL that a submitter named, or the name of a receiver
-- whose URL is configured. One that fails delays no other, also not of the same origin.
ALTER TABLE queues ADD COLUMN destination TEXT NOT NULL DEFAULT '';
ALTER TABLE queues ADD COLUMN waiting INTEGER NOT NULL DEFAULT 0;     -- 0: tried when it is due; 1: in the backlog of its
                                                                      -- destination
ALTER TABLE queues ADD COLUMN waits_since INTEGER NOT NULL DEFAULT 0; -- no later than its first message
UPDATE queues
SET destination = coalesce((SELECT substr(url, 1, 600) FROM messages
                            WHERE messages.receiver = queues.receiver AND messages.subject = queues.subject
                            LIMIT 1), receiver),
    waits_since = due_at;
DROP INDEX queues_due;
-- Each holds nothing else, so that what is due is found at once, whatever waits for a destination that fails.
CREATE INDEX queues_due ON queues (due_at) WHERE waiting = 0;
CREATE INDEX queues_waiting ON queues (destination, due_at) WHERE waiting = 1;
CREATE INDEX queues_waiting_since ON queues (destination, waits_since) WHERE waiting = 1;

-- From when on the time of a message counts, where not from its creation: its redelivery.
ALTER TABLE messages ADD COLUMN pending_since INTEGER;

-- One row for each destination that fails or has a backlog: more messages than may be under way at once.
CREATE TABLE destinations (
    destination   TEXT    NOT NULL PRIMARY KEY,
    receiver      TEXT    NOT NULL,
    failures      INTEGER NOT NULL,           -- in a row
    failing_since INTEGER,                    -- when the first of them began
    changed_at    INTEGER NOT NULL,           -- when failures were last noted, or their end
    paused_until  INTEGER NOT NULL,
    next_at       INTEGER,                    -- when its backlog is looked at; null where there is none
    locked_by     TEXT                        -- the instance that probes it
) STRICT, WITHOUT ROWID;
CREATE INDEX destinations_failing ON destinations (next_at) WHERE failures > 0;
CREATE INDEX destinations_behind ON destinations (next_at) WHERE failures = 0;
CREATE INDEX destinations_idle ON destinations (changed_at) WHERE next_at IS NULL;
