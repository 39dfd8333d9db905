-- Where the submitter is told what becomes of the task, as JSON.
ALTER TABLE task_details ADD COLUMN reply_to text;

-- The outbox. A message is written with the change that it tells of, and deleted once it is delivered.
-- It stands by itself: a task that is purged meanwhile does not take its messages along.
CREATE TABLE messages (
    id         uuid   NOT NULL PRIMARY KEY,
    receiver   text COLLATE "C" NOT NULL, -- a configured name, or the origin of `url`
    subject    uuid   NOT NULL,           -- the task; of an alert without one, the alert
    place      bigint NOT NULL,           -- in its queue
    task_id    uuid,
    kind       text   NOT NULL,
    url        text,
    body       text   NOT NULL,
    created_at bigint NOT NULL,
    state      text COLLATE "C" NOT NULL, -- pending, dead
    tries      bigint NOT NULL,           -- of a dead one; while it is pending its queue counts
    error      text,
    died_at    bigint                     -- also of one that is being redelivered
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX messages_in_queue ON messages (receiver, subject, place, id) WHERE state = 'pending';
-- Dead letters, and those on their way again.
CREATE INDEX messages_died ON messages (died_at) WHERE died_at IS NOT NULL;
CREATE INDEX messages_died_by_receiver ON messages (receiver, id) WHERE died_at IS NOT NULL;

-- One row for each receiver and subject with messages to be delivered: they go one after the other.
-- Whoever adds to a queue or takes from it locks its row.
CREATE TABLE queues (
    receiver  text COLLATE "C" NOT NULL,
    subject   uuid   NOT NULL,
    due_at    bigint NOT NULL,            -- when its first message may be tried; held, when it is let go
    locked_by text COLLATE "C",           -- the instance that tries it
    tries     bigint NOT NULL,            -- of its first message
    since     bigint,                     -- the first of them
    error     text,                       -- how the last of them failed
    PRIMARY KEY (receiver, subject)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX queues_due ON queues (receiver, due_at);

-- Alerts are about a step of a task, or about a receiver that messages cannot be delivered to.
ALTER TABLE alerts ALTER COLUMN task_id DROP NOT NULL, ALTER COLUMN idx DROP NOT NULL,
                   ALTER COLUMN step DROP NOT NULL, ADD COLUMN receiver text COLLATE "C";
-- While an alert for a receiver is not closed, no second one is raised.
CREATE UNIQUE INDEX alerts_unclosed_of_receiver ON alerts (receiver) WHERE receiver IS NOT NULL AND state <> 'closed';
