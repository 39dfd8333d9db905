-- How instances share the slots of agents whose calls in flight are limited: one record for each agent, whose version
-- grows with every change.
CREATE TABLE slot_shares (
    agent   TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    shares  TEXT NOT NULL
) STRICT, WITHOUT ROWID;
