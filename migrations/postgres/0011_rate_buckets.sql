-- The rate limits that instances share: when the bucket of an agent is full again, in nanoseconds since the Unix epoch.
CREATE TABLE rate_buckets (
    agent   text NOT NULL PRIMARY KEY,
    full_at bigint NOT NULL
);
