-- What happened, in one order: each transaction that writes the history of tasks, or makes another change that is audited, adds
-- one row or a few. The ids are in the order of the commits, because one connection writes, and none is used twice, because
-- the newest row is never deleted.
CREATE TABLE ledger (
    id      INTEGER NOT NULL PRIMARY KEY,
    at      INTEGER NOT NULL,
    changes BLOB,    -- the entries of the history that were written: for each the id of the task and its version (LEB128)
    records TEXT,    -- a JSON array of changes that no history has
    audited INTEGER  -- 1: of records that people or definitions made, or agents, which are kept longer
) STRICT;
CREATE INDEX ledger_audited ON ledger (id) WHERE audited IS NOT NULL;

-- One row: the position before the oldest row that is kept, and the time since which every instance writes the ledger.
CREATE TABLE ledger_state (
    id             INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    floor_id       INTEGER NOT NULL,
    complete_since INTEGER
) STRICT;
INSERT INTO ledger_state (id, floor_id) VALUES (1, 0);

-- Readers with a name, each with the position that it has confirmed.
CREATE TABLE ledger_readers (
    name       TEXT    NOT NULL PRIMARY KEY,
    version    INTEGER NOT NULL, -- every change compares and sets it
    position   TEXT    NOT NULL,
    owner      TEXT    NOT NULL, -- the name of the caller that made it
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- One row: the settings of the instance that started last, without secrets.
CREATE TABLE ledger_settings (
    id       INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    settings TEXT NOT NULL
) STRICT;

-- Of an instance that writes the ledger. On PostgreSQL older ones may be on record.
ALTER TABLE instances ADD COLUMN writes_ledger INTEGER;
