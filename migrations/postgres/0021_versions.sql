-- Which versions of workflows were made active, by whom and why. The last one of a workflow is active; of a workflow that has
-- none its newest version is.
CREATE TABLE workflow_activations (
    name         text COLLATE "C" NOT NULL,
    number       bigint NOT NULL, -- counted from 1
    version      bigint NOT NULL,
    from_version bigint NOT NULL, -- the one that was active before
    at           bigint NOT NULL,
    activated_by text   NOT NULL,
    reason       text,
    PRIMARY KEY (name, number)
);
-- The names of the task's steps by their index, as JSON, if it has had another version of its workflow before, and the order
-- of its steps is not that of its version.
ALTER TABLE task_details ADD COLUMN layout text;
