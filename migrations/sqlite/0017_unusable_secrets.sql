-- The secrets that instances cannot use, as JSON in one row: an alert is open for each.
CREATE TABLE unusable_secrets (
    id      INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    version INTEGER NOT NULL,
    reports TEXT NOT NULL
) STRICT;
