-- What people are asked now: a row for each person, in the order of the question. They are deleted when it is closed.
CREATE TABLE open_asks (
    task_id  uuid NOT NULL,
    idx      bigint NOT NULL,
    place    bigint NOT NULL,
    person   text COLLATE "C" NOT NULL,
    workflow text COLLATE "C" NOT NULL, -- empty: the task has inline steps
    PRIMARY KEY (task_id, idx, place)
);
CREATE INDEX open_asks_listed ON open_asks (task_id, idx) WHERE place = 0;
CREATE INDEX open_asks_of_workflow ON open_asks (workflow, task_id, idx) WHERE place = 0;
CREATE INDEX open_asks_of_person ON open_asks (person, task_id, idx);
CREATE INDEX open_asks_of_person_by_workflow ON open_asks (person, workflow, task_id, idx);
