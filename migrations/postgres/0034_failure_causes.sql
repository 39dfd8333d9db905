-- Each cause for which steps failed that need a person. Its row stays when the last of them is resolved, so that links to it work.
CREATE TABLE failure_causes (
    fingerprint text COLLATE "C" NOT NULL PRIMARY KEY,
    cause       text   NOT NULL, -- as JSON
    first       text   NOT NULL, -- the first step that failed, as JSON
    first_at    bigint NOT NULL,
    last_at     bigint NOT NULL, -- apart from the failures that failure_quarters still counts
    failures    bigint NOT NULL  -- likewise
);
CREATE INDEX failure_causes_by_last ON failure_causes (last_at);

-- The failures of a cause in a quarter of an hour. Instances add to different rows, so that they do not wait for each other.
CREATE TABLE failure_quarters (
    fingerprint text COLLATE "C" NOT NULL REFERENCES failure_causes (fingerprint),
    quarter     bigint NOT NULL, -- the number of quarters of an hour since 1970
    shard       bigint NOT NULL,
    failures    bigint NOT NULL,
    last_at     bigint NOT NULL,
    PRIMARY KEY (fingerprint, quarter, shard)
);
CREATE INDEX failure_quarters_by_quarter ON failure_quarters (quarter);

-- The alert of a step names the cause. The alerts of earlier releases, and of their instances beside newer ones, do not: they are
-- found by the second index, and get their causes.
ALTER TABLE alerts ADD COLUMN fingerprint text COLLATE "C";
CREATE INDEX alerts_unclosed_of_failure ON alerts (fingerprint, task_id) WHERE fingerprint IS NOT NULL AND state <> 'closed';
CREATE INDEX alerts_without_failure ON alerts (id)
    WHERE fingerprint IS NULL AND task_id IS NOT NULL AND kind <> 'task.unreadable' AND state <> 'closed';
