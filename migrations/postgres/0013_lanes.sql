-- Where a step stands in its agent's queue: the least turn is first. It is made of the task's priority, its age and the
-- time that it has to complete; one priority is worth an hour. The steps that an instance of the version before adds
-- have none, and go first.
ALTER TABLE steps ADD COLUMN turn bigint NOT NULL DEFAULT 0;
ALTER TABLE steps ALTER COLUMN priority SET DEFAULT 0;
UPDATE steps
SET turn = tasks.created_at + least(coalesce(tasks.complete_within, 3600000), 3600000) - 3600000 * tasks.priority
FROM tasks WHERE tasks.id = steps.task_id AND tasks.ended_at IS NULL;

-- The lane of a step in its agent's queue, where that is divided by keys of the tasks; else empty.
ALTER TABLE steps ADD COLUMN lane text NOT NULL DEFAULT '';
DROP INDEX steps_line;
CREATE INDEX steps_line ON steps (agent, lane, turn, task_id, idx) WHERE due_at IS NOT NULL AND queued = 1;
-- What runs in each lane.
CREATE INDEX steps_in_lane ON steps (agent, lane) WHERE state = 'processing' AND lane <> '';

-- The token buckets of keys whose rate is limited.
CREATE TABLE key_rates (
    agent   text NOT NULL,
    "key"   text NOT NULL, -- the number of the limit and the key
    full_at bigint NOT NULL, -- nanoseconds since the Unix epoch
    PRIMARY KEY (agent, "key")
);
