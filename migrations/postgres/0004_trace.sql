-- What the submitter's trace says besides its id: the flags of its traceparent, and its tracestate.
ALTER TABLE tasks ADD COLUMN trace_flags bigint;
ALTER TABLE tasks ADD COLUMN tracestate text;
