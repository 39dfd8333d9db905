-- What is known of a reply that a service promised for later, and of the last ones that came, as JSON; null for most.
ALTER TABLE steps ADD COLUMN reply text;

-- An attempt that waits for such a reply is held by no instance. It stands in an index of its own, so that looking
-- after what instances hold costs nothing for it. `complete_by` is also the time by which a heartbeat must come.
DROP INDEX steps_processing;
CREATE INDEX steps_processing ON steps (complete_by, locked_by) WHERE state = 'processing' AND locked_by IS NOT NULL;
CREATE INDEX steps_awaited ON steps (complete_by) WHERE state = 'processing' AND locked_by IS NULL;

-- Keys of the store, the same for all instances. With the first one it makes the tokens of later replies.
CREATE TABLE secrets (
    name  text NOT NULL PRIMARY KEY,
    value text NOT NULL
);
-- The random part of each UUID has 122 bits, of a cryptographic generator.
INSERT INTO secrets (name, value)
VALUES ('reply-tokens', replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''));
