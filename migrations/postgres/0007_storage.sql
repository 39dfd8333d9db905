-- Ended tasks are deleted every day, with all that belongs to them. The usual fifth of a table is far too late for that:
-- what a month has left is vacuumed once in six days then, and until it is, its space is not used again. A fiftieth is
-- a look a day. Only indexes and changed pages are read for it. Large inputs and outputs are in tables of their own.
ALTER TABLE tasks SET (toast.autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE steps SET (toast.autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE task_details SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    toast.autovacuum_vacuum_scale_factor = 0.02
);
ALTER TABLE history SET (
    autovacuum_vacuum_scale_factor = 0.02,
    toast.autovacuum_vacuum_scale_factor = 0.02
);
ALTER TABLE task_labels SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05
);
ALTER TABLE idempotency_keys SET (
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_insert_scale_factor = 0.05
);
ALTER TABLE alerts SET (autovacuum_vacuum_scale_factor = 0.02);
