-- The claim of a step that has no row, because its first attempt is all that has happened in it: which step, by which instance, from
-- when, and until when it is to complete. A task has room for one.
ALTER TABLE tasks ADD COLUMN claim_step bigint;
ALTER TABLE tasks ADD COLUMN claimed_by text COLLATE "C";
ALTER TABLE tasks ADD COLUMN claimed_at bigint;
ALTER TABLE tasks ADD COLUMN claim_until bigint;
-- claim_until, rounded down to ten seconds: so the next claim of a task seldom changes the index.
ALTER TABLE tasks ADD COLUMN claim_after bigint;
CREATE INDEX tasks_claimed ON tasks (claim_after, claimed_by) WHERE claimed_by IS NOT NULL;
-- Of an instance that reads such claims; null of an older one that is on record by now, and no other comes.
ALTER TABLE instances ADD COLUMN reads_claims bigint;
ALTER TABLE instances ALTER COLUMN reads_claims SET DEFAULT 0;
ALTER TABLE instances DROP CONSTRAINT older_instances_cannot_join;
ALTER TABLE instances ADD CONSTRAINT older_instances_cannot_join CHECK (reads_claims IS NULL OR reads_claims = 1);
