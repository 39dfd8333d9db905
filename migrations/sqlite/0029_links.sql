-- Of an instance that completes the links of people who are asked when it sends them: until then messages have them without their
-- MACs. On PostgreSQL older ones may be on record.
ALTER TABLE instances ADD COLUMN completes_links INTEGER;
