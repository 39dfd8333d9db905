-- What was done in an hour: the tasks of a workflow, or the calls of an agent. Each process has rows of its own, so that they
-- do not wait for each other.
CREATE TABLE activity (
    hour   bigint NOT NULL,           -- the number of hours since 1970
    shard  text COLLATE "C" NOT NULL, -- the process that counted, empty once the counts of all processes are one
    kind   text COLLATE "C" NOT NULL, -- workflow, agent
    name   text COLLATE "C" NOT NULL,
    counts text   NOT NULL,           -- as JSON
    PRIMARY KEY (hour, shard, kind, name)
);
CREATE INDEX activity_by_process ON activity (hour, shard) WHERE shard <> '';
