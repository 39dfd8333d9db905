-- Each cause for which steps failed that need a person. Its row stays when the last of them is resolved, so that links to it work.
CREATE TABLE failure_causes (
    fingerprint TEXT    NOT NULL PRIMARY KEY,
    cause       TEXT    NOT NULL, -- as JSON
    first       TEXT    NOT NULL, -- the first step that failed, as JSON
    first_at    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL, -- apart from the failures that failure_quarters still counts
    failures    INTEGER NOT NULL  -- likewise
) STRICT, WITHOUT ROWID;
CREATE INDEX failure_causes_by_last ON failure_causes (last_at);

-- The failures of a cause in a quarter of an hour.
CREATE TABLE failure_quarters (
    fingerprint TEXT    NOT NULL REFERENCES failure_causes (fingerprint),
    quarter     INTEGER NOT NULL, -- the number of quarters of an hour since 1970
    shard       INTEGER NOT NULL,
    failures    INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    PRIMARY KEY (fingerprint, quarter, shard)
) STRICT, WITHOUT ROWID;
CREATE INDEX failure_quarters_by_quarter ON failure_quarters (quarter);

-- The alert of a step names the cause. The alerts of earlier releases, and of their instances beside newer ones, do not: they are
-- found by the second index, and get their causes.
ALTER TABLE alerts ADD COLUMN fingerprint TEXT;
CREATE INDEX alerts_unclosed_of_failure ON alerts (fingerprint, task_id, state) WHERE fingerprint IS NOT NULL AND state <> 'closed';
CREATE INDEX alerts_without_failure ON alerts (id)
    WHERE fingerprint IS NULL AND task_id IS NOT NULL AND kind <> 'task.unreadable' AND state <> 'closed';
