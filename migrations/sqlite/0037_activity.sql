-- What was done in an hour: the tasks of a workflow, or the calls of an agent.
CREATE TABLE activity (
    hour   INTEGER NOT NULL, -- the number of hours since 1970
    shard  TEXT    NOT NULL, -- the process that counted, empty once the counts of all processes are one
    kind   TEXT    NOT NULL, -- workflow, agent
    name   TEXT    NOT NULL,
    counts TEXT    NOT NULL, -- as JSON
    PRIMARY KEY (hour, shard, kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX activity_by_process ON activity (hour, shard) WHERE shard <> '';
