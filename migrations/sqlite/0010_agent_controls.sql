-- What keeps calls from an agent: a pause, and the breakers of its endpoints. The version grows with every change.
CREATE TABLE agent_controls (
    agent   TEXT NOT NULL PRIMARY KEY,
    version INTEGER NOT NULL,
    control TEXT NOT NULL
) STRICT, WITHOUT ROWID;
