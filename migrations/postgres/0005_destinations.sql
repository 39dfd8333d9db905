-- Failures and pauses are kept for each destination: the URL that a submitter named, or the name of a receiver
-- whose URL is configured. One that fails delays no other, also not of the same origin.
ALTER TABLE queues
    ADD COLUMN destination text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN waiting     smallint NOT NULL DEFAULT 0, -- 0: tried when it is due; 1: in the backlog of its destination
    ADD COLUMN waits_since bigint NOT NULL DEFAULT 0;   -- no later than its first message
UPDATE queues
SET destination = coalesce((SELECT left(url, 600) FROM messages
                            WHERE messages.receiver = queues.receiver AND messages.subject = queues.subject
                            LIMIT 1), receiver),
    waits_since = due_at;
ALTER TABLE queues ALTER COLUMN destination DROP DEFAULT, ALTER COLUMN waits_since DROP DEFAULT;
DROP INDEX queues_due;
-- Each holds nothing else, so that what is due is found at once, whatever waits for a destination that fails.
CREATE INDEX queues_due ON queues (due_at) WHERE waiting = 0;
CREATE INDEX queues_waiting ON queues (destination, due_at) WHERE waiting = 1;
CREATE INDEX queues_waiting_since ON queues (destination, waits_since) WHERE waiting = 1;

-- From when on the time of a message counts, where not from its creation: its redelivery.
ALTER TABLE messages ADD COLUMN pending_since bigint;

-- One row for each destination that fails or has a backlog: more messages than may be under way at once.
CREATE TABLE destinations (
    destination   text COLLATE "C" NOT NULL PRIMARY KEY,
    receiver      text COLLATE "C" NOT NULL,
    failures      bigint NOT NULL,            -- in a row
    failing_since bigint,                     -- when the first of them began
    changed_at    bigint NOT NULL,            -- when failures were last noted, or their end
    paused_until  bigint NOT NULL,
    next_at       bigint,                     -- when its backlog is looked at; null where there is none
    locked_by     text COLLATE "C"            -- the instance that probes it
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX destinations_failing ON destinations (next_at) WHERE failures > 0;
CREATE INDEX destinations_behind ON destinations (next_at) WHERE failures = 0;
CREATE INDEX destinations_idle ON destinations (changed_at) WHERE next_at IS NULL;
