-- Steps that call no service have no agent: its name is empty. Those that have begun wait for a time, however many there are,
-- so they are apart from the replies that are awaited.
DROP INDEX steps_awaited;
CREATE INDEX steps_awaited ON steps (complete_by) WHERE state = 'processing' AND locked_by IS NULL AND agent <> '';
CREATE INDEX steps_waits ON steps (complete_by) WHERE state = 'processing' AND agent = '';
