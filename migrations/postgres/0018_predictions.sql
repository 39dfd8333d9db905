-- How many steps of each agent a process has completed since it began, and how long they took.
CREATE TABLE counted_steps (
    instance text COLLATE "C" NOT NULL PRIMARY KEY,
    at       bigint NOT NULL,
    counted  text NOT NULL -- JSON
);

-- Tasks that will be late by what is known. A row is deleted some time after its task has ended.
CREATE TABLE tasks_at_risk (
    task_id       uuid NOT NULL PRIMARY KEY,
    predicted_end bigint, -- NULL: not before an operator resumes the agent
    agent         text COLLATE "C" NOT NULL,
    since         bigint NOT NULL
);
