-- The secrets that instances cannot use, as JSON in one row: an alert is open for each.
CREATE TABLE unusable_secrets (
    id      integer NOT NULL PRIMARY KEY CHECK (id = 1),
    version bigint NOT NULL,
    reports text NOT NULL
);
