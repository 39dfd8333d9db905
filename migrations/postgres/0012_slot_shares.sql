-- How instances share the slots of agents whose calls in flight are limited: one record for each agent, whose version
-- grows with every change.
CREATE TABLE slot_shares (
    agent   text NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    shares  text NOT NULL
);
