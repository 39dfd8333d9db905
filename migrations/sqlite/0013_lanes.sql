-- Where a step stands in its agent's queue: the least turn is first. It is made of the task's priority, its age and the
-- time that it has to complete; one priority is worth an hour.
DROP INDEX steps_line;
ALTER TABLE steps RENAME COLUMN priority TO turn;
UPDATE steps SET turn = (
    SELECT created_at + min(coalesce(complete_within, 3600000), 3600000) - 3600000 * tasks.priority
    FROM tasks WHERE tasks.id = steps.task_id)
WHERE task_id IN (SELECT id FROM tasks WHERE ended_at IS NULL);

-- The lane of a step in its agent's queue, where that is divided by keys of the tasks; else empty.
ALTER TABLE steps ADD COLUMN lane TEXT NOT NULL DEFAULT '';
CREATE INDEX steps_line ON steps (agent, lane, turn, task_id, idx) WHERE due_at IS NOT NULL AND queued = 1;
-- What runs in each lane.
CREATE INDEX steps_in_lane ON steps (agent, lane) WHERE state = 'processing' AND lane <> '';

-- The token buckets of keys whose rate is limited.
CREATE TABLE key_rates (
    agent   TEXT    NOT NULL,
    "key"   TEXT    NOT NULL, -- the number of the limit and the key
    full_at INTEGER NOT NULL, -- nanoseconds since the Unix epoch
    PRIMARY KEY (agent, "key")
) STRICT, WITHOUT ROWID;
