-- The claim of a step that has no row, because its first attempt is all that has happened in it: which step, by which instance, from
-- when, and until when it is to complete. A task has room for one.
ALTER TABLE tasks ADD COLUMN claim_step INTEGER;
ALTER TABLE tasks ADD COLUMN claimed_by TEXT;
ALTER TABLE tasks ADD COLUMN claimed_at INTEGER;
ALTER TABLE tasks ADD COLUMN claim_until INTEGER;
-- claim_until, rounded down to ten seconds: so the next claim of a task seldom changes the index.
ALTER TABLE tasks ADD COLUMN claim_after INTEGER;
CREATE INDEX tasks_claimed ON tasks (claim_after, claimed_by) WHERE claimed_by IS NOT NULL;
-- Of an instance that reads such claims. On PostgreSQL older ones may be on record.
ALTER TABLE instances ADD COLUMN reads_claims INTEGER;
