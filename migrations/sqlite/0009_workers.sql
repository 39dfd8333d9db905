-- The worker that has fetched a step and works on it. The same is in `reply`; this is for the index alone.
ALTER TABLE steps ADD COLUMN worker TEXT;
CREATE INDEX steps_fetched ON steps (agent, worker, task_id, idx) WHERE worker IS NOT NULL;

-- When each worker of an agent last asked for work.
CREATE TABLE workers (
    agent   TEXT    NOT NULL,
    name    TEXT    NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (agent, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX workers_of_agent ON workers (agent, seen_at);
CREATE INDEX workers_seen ON workers (seen_at);
