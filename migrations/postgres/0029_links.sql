-- Of an instance that completes the links of people who are asked when it sends them: until then messages have them without their
-- MACs. Null of an older one that is on record by now, and no other comes.
ALTER TABLE instances ADD COLUMN completes_links bigint;
ALTER TABLE instances ALTER COLUMN completes_links SET DEFAULT 0;
ALTER TABLE instances DROP CONSTRAINT older_instances_cannot_join;
ALTER TABLE instances ADD CONSTRAINT older_instances_cannot_join CHECK (completes_links IS NULL OR completes_links = 1);
