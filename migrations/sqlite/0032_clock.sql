-- What the store's clock showed (at), and how long the machine had then been running since the start that boot names (elapsed,
-- milliseconds): a process that is started after the wall clock was set goes on from it.
CREATE TABLE clock (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    at      INTEGER NOT NULL,
    boot    TEXT NOT NULL,
    elapsed INTEGER NOT NULL
) STRICT;
