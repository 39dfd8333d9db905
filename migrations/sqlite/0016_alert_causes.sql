-- Steps that fail at one agent for one cause have one alert, the alert of the cause: a row of its own with `cause`, which
-- stands for the rows of the steps, whose `part_of` it is. Alerts from before have neither.
ALTER TABLE alerts ADD COLUMN part_of BLOB;
ALTER TABLE alerts ADD COLUMN agent TEXT;
ALTER TABLE alerts ADD COLUMN cause TEXT;
ALTER TABLE alerts ADD COLUMN first TEXT;         -- the first step that failed, as JSON
ALTER TABLE alerts ADD COLUMN members INTEGER;    -- the unclosed rows of steps when they were last counted
ALTER TABLE alerts ADD COLUMN peak INTEGER;       -- the most of them at one time; of a closed alert, how many there were
ALTER TABLE alerts ADD COLUMN counted_at INTEGER;
ALTER TABLE alerts ADD COLUMN announced INTEGER;  -- of how many the webhooks know
-- While the alert of a cause is not closed, no second one is raised.
CREATE UNIQUE INDEX alerts_unclosed_of_cause ON alerts (kind, cause) WHERE cause IS NOT NULL AND state <> 'closed';
CREATE INDEX alerts_closed_of_cause ON alerts (closed_at, id) WHERE cause IS NOT NULL AND state = 'closed';
CREATE INDEX alerts_parts ON alerts (part_of, id) WHERE part_of IS NOT NULL;
-- With the state, it is enough for counting them.
CREATE INDEX alerts_unclosed_parts ON alerts (part_of, id, state) WHERE part_of IS NOT NULL AND state <> 'closed';
CREATE INDEX alerts_listed ON alerts (id) WHERE part_of IS NULL;
CREATE INDEX alerts_listed_by_state ON alerts (state, id) WHERE part_of IS NULL;
