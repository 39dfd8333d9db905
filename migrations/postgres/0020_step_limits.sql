-- The steps that run and are limited by their workflow, by the keys that they count for. A row whose step does not run any
-- more counts for nothing.
CREATE TABLE limited_steps (
    limit_key text   NOT NULL, -- a hash of the workflow, the template and the key
    task_id   uuid   NOT NULL,
    idx       bigint NOT NULL,
    PRIMARY KEY (limit_key, task_id, idx)
);
CREATE INDEX limited_steps_by_task ON limited_steps (task_id, idx);
