-- How many steps of the definition have no row, because nothing has happened in them since the task was submitted: they wait.
-- Their places are the gaps among the rows of the others.
ALTER TABLE tasks ADD COLUMN untouched INTEGER NOT NULL DEFAULT 0;
-- The agents of the steps that had no row when the task was submitted, by their places: {"1":"payments"}. It does not change when
-- they get one.
ALTER TABLE tasks ADD COLUMN agents TEXT;
-- Of an instance that reads tasks with such steps. On PostgreSQL older ones may be on record.
ALTER TABLE instances ADD COLUMN reads_untouched INTEGER;
