-- Of an instance that reads the rules for attempts and the races in definitions, and what steps keep because of them. Null of an older one that is
-- on record by now, and no other comes.
ALTER TABLE instances ADD COLUMN reads_attempt_rules bigint;
ALTER TABLE instances ALTER COLUMN reads_attempt_rules SET DEFAULT 0;
ALTER TABLE instances DROP CONSTRAINT older_instances_cannot_join;
ALTER TABLE instances ADD CONSTRAINT older_instances_cannot_join CHECK (reads_attempt_rules IS NULL OR reads_attempt_rules = 1);
