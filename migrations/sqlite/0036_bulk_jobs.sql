-- Jobs that apply one command to many tasks: the command as it was requested, and the progress, as JSON.
CREATE TABLE bulk_jobs (
    id          BLOB    NOT NULL PRIMARY KEY,
    version     INTEGER NOT NULL, -- every change compares and sets it
    state       TEXT    NOT NULL,
    due_at      INTEGER,          -- when an instance has work to do
    kept_until  INTEGER,          -- when it may be deleted
    request_key TEXT,             -- the Idempotency-Key of the request
    fingerprint TEXT,
    created_at  INTEGER NOT NULL,
    command     TEXT    NOT NULL,
    progress    TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX bulk_jobs_due ON bulk_jobs (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX bulk_jobs_kept ON bulk_jobs (kept_until) WHERE kept_until IS NOT NULL;
CREATE UNIQUE INDEX bulk_jobs_by_key ON bulk_jobs (request_key) WHERE request_key IS NOT NULL;

-- The result of each task of a job. Nothing refers to the task, which may be deleted before.
CREATE TABLE bulk_tasks (
    job_id  BLOB    NOT NULL,
    task_id BLOB    NOT NULL,
    result  TEXT    NOT NULL, -- accepted, refused
    at      INTEGER NOT NULL, -- a time before the command was applied
    kind    TEXT,             -- the kind of problem of a refusal
    reason  TEXT,
    PRIMARY KEY (job_id, result, task_id)
) STRICT, WITHOUT ROWID;
