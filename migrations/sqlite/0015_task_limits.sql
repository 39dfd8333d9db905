-- A task that has not begun, because so many tasks of its key run.
ALTER TABLE tasks ADD COLUMN waits INTEGER NOT NULL DEFAULT 0;

-- The tasks of workflows with limits, by the keys that they count for. A row is deleted some time after its task has ended.
CREATE TABLE limited_tasks (
    limit_key   TEXT NOT NULL, -- the workflow, the template and the key, as a JSON array
    task_id     BLOB NOT NULL,
    state       INTEGER NOT NULL, -- 0: it waits, 1: it may begin, 2: it has begun
    max_running INTEGER NOT NULL,
    on_conflict TEXT NOT NULL,
    PRIMARY KEY (limit_key, task_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX limited_tasks_by_task ON limited_tasks (task_id);
CREATE INDEX limited_tasks_waiting ON limited_tasks (limit_key, task_id) WHERE state = 0;
CREATE INDEX limited_tasks_running ON limited_tasks (limit_key, task_id) WHERE state > 0;
CREATE INDEX limited_tasks_admitted ON limited_tasks (task_id) WHERE state = 1;
