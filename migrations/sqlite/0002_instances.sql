-- Who runs, and who supervises. An instance's own row is its lease on its id: while `until` has not
-- come, the steps that it holds are its own. `until` moves with every renewal.
CREATE TABLE instances (
    id          TEXT    NOT NULL PRIMARY KEY,
    incarnation BLOB    NOT NULL,      -- the one process that may renew it
    term        INTEGER NOT NULL,      -- how many processes have had this id
    until       INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    version     TEXT    NOT NULL,
    process     TEXT    NOT NULL       -- which process on which machine
) STRICT, WITHOUT ROWID;

-- One row: the lease of the one instance that supervises.
CREATE TABLE supervisor (
    id          INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    instance    TEXT    NOT NULL,
    incarnation BLOB    NOT NULL,
    term        INTEGER NOT NULL,      -- how many have supervised; the history names it
    until       INTEGER NOT NULL
) STRICT;

-- The supervisor also looks for steps whose instance is lost: it reads the holders of all running
-- steps, from the index alone.
DROP INDEX steps_processing;
CREATE INDEX steps_processing ON steps (complete_by, locked_by) WHERE state = 'processing';
