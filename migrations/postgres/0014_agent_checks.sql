-- The last check of each agent that was checked: what its service held of what steps rely on.
CREATE TABLE agent_checks (
    agent  text NOT NULL PRIMARY KEY,
    result text NOT NULL
);
