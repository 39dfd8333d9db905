-- How many steps of the definition have no row, because nothing has happened in them since the task was submitted: they wait.
-- Their places are the gaps among the rows of the others.
ALTER TABLE tasks ADD COLUMN untouched bigint NOT NULL DEFAULT 0;
-- The agents of the steps that had no row when the task was submitted, by their places: {"1":"payments"}. It does not change when
-- they get one.
ALTER TABLE tasks ADD COLUMN agents text;
-- Of an instance that reads tasks with such steps; null of an older one that is on record by now. Those go on and renew their leases,
-- and no other comes: its record would have the default.
ALTER TABLE instances ADD COLUMN reads_untouched bigint;
ALTER TABLE instances ALTER COLUMN reads_untouched SET DEFAULT 0;
ALTER TABLE instances ADD CONSTRAINT older_instances_cannot_join CHECK (reads_untouched IS NULL OR reads_untouched = 1);
