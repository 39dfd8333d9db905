-- An operator looks for failures by their workflow, by the agent that failed and by their alert. Only rows in error are indexed, so
-- that a task without failures pays nothing. The state is no column of these indexes: PostgreSQL asks nothing of a column that their
-- condition covers, and would read all of an index that begins with it.
CREATE INDEX tasks_failed ON tasks (workflow, id) WHERE state = 'error';
CREATE INDEX steps_failed ON steps (agent, task_id) WHERE state = 'error';
CREATE INDEX alerts_unclosed_tasks ON alerts (part_of, task_id) WHERE part_of IS NOT NULL AND state <> 'closed';
