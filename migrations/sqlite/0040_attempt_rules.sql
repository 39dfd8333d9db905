-- Of an instance that reads the rules for attempts and the races in definitions, and what steps keep because of them. On PostgreSQL older ones may
-- be on record.
ALTER TABLE instances ADD COLUMN reads_attempt_rules INTEGER;
