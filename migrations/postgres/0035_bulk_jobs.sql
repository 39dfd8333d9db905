-- Jobs that apply one command to many tasks: the command as it was requested, and the progress, as JSON.
CREATE TABLE bulk_jobs (
    id          uuid   NOT NULL PRIMARY KEY,
    version     bigint NOT NULL, -- every change compares and sets it
    state       text   NOT NULL,
    due_at      bigint,          -- when an instance has work to do
    kept_until  bigint,          -- when it may be deleted
    request_key text,            -- the Idempotency-Key of the request
    fingerprint text,
    created_at  bigint NOT NULL,
    command     text   NOT NULL,
    progress    text   NOT NULL
);
CREATE INDEX bulk_jobs_due ON bulk_jobs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX bulk_jobs_kept ON bulk_jobs (kept_until) WHERE kept_until IS NOT NULL;
CREATE UNIQUE INDEX bulk_jobs_by_key ON bulk_jobs (request_key) WHERE request_key IS NOT NULL;

-- The result of each task of a job. Nothing refers to the task, which may be deleted before.
CREATE TABLE bulk_tasks (
    job_id  uuid   NOT NULL,
    task_id uuid   NOT NULL,
    result  text   NOT NULL, -- accepted, refused
    at      bigint NOT NULL, -- a time before the command was applied
    kind    text,            -- the kind of problem of a refusal
    reason  text,
    PRIMARY KEY (job_id, result, task_id)
);
