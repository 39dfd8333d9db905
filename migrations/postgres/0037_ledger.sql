-- What happened, in one order: each transaction that writes the history of tasks, or makes another change that is audited, adds
-- one row or a few. The order is that of the transactions' ids. A reader reads the rows of transactions before the oldest that
-- still runs, so that none that commits later comes before one that it has read. After a restore on another server the
-- ids begin again: the epoch, which grows then, comes first in the order.
CREATE TABLE ledger (
    xid     xid8   NOT NULL DEFAULT pg_current_xact_id(),
    id      bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at      bigint NOT NULL,
    epoch   bigint NOT NULL,
    audited bigint,  -- 1: of records that people or definitions made, or agents, which are kept longer
    changes bytea,   -- the entries of the history that were written: for each the id of the task and its version (LEB128)
    records text,    -- a JSON array of changes that no history has
    PRIMARY KEY (epoch, xid, id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05
);
CREATE INDEX ledger_audited ON ledger (epoch, xid, id) WHERE audited IS NOT NULL;

-- One row: the epoch, the position before the oldest row that is kept, and the time since which every instance writes the
-- ledger.
CREATE TABLE ledger_state (
    id             bigint NOT NULL PRIMARY KEY CHECK (id = 1),
    epoch          bigint NOT NULL,
    floor_epoch    bigint NOT NULL,
    floor_xid      xid8   NOT NULL,
    floor_id       bigint NOT NULL,
    complete_since bigint
) WITH (fillfactor = 50);
INSERT INTO ledger_state (id, epoch, floor_epoch, floor_xid, floor_id) VALUES (1, 1, 0, '0', 0);

-- Readers with a name, each with the position that it has confirmed.
CREATE TABLE ledger_readers (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    version    bigint NOT NULL, -- every change compares and sets it
    position   text   NOT NULL,
    owner      text   NOT NULL, -- the name of the caller that made it
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
) WITH (fillfactor = 50);

-- One row: the settings of the instance that started last, without secrets.
CREATE TABLE ledger_settings (
    id       bigint NOT NULL PRIMARY KEY CHECK (id = 1),
    settings text NOT NULL
);

-- Of an instance that writes the ledger. Null of an older one that is on record by now, and no other comes.
ALTER TABLE instances ADD COLUMN writes_ledger bigint;
ALTER TABLE instances ALTER COLUMN writes_ledger SET DEFAULT 0;
ALTER TABLE instances DROP CONSTRAINT older_instances_cannot_join;
ALTER TABLE instances ADD CONSTRAINT older_instances_cannot_join CHECK (writes_ledger IS NULL OR writes_ledger = 1);
