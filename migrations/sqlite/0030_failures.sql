-- An operator looks for failures by their workflow, by the agent that failed and by their alert. Only rows in error are indexed, so
-- that a task without failures pays nothing. The state comes first, so that a planner prefers these indexes to those without it.
CREATE INDEX tasks_failed ON tasks (state, workflow, id) WHERE state = 'error';
CREATE INDEX steps_failed ON steps (state, agent, task_id) WHERE state = 'error';
CREATE INDEX alerts_unclosed_tasks ON alerts (part_of, task_id) WHERE part_of IS NOT NULL AND state <> 'closed';
