-- The last check of each agent that was checked: what its service held of what steps rely on.
CREATE TABLE agent_checks (
    agent  TEXT NOT NULL PRIMARY KEY,
    result TEXT NOT NULL
) STRICT, WITHOUT ROWID;
