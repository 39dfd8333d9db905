-- What keeps calls from an agent: a pause, and the breakers of its endpoints. The version grows with every change.
CREATE TABLE agent_controls (
    agent   text NOT NULL PRIMARY KEY,
    version bigint NOT NULL,
    control text NOT NULL
);
