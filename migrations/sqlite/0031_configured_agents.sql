-- The names of the agents that an instance has in its configuration file, as a JSON array. Others do not have to have them. Null: the
-- instance is older, or has just begun.
ALTER TABLE instances ADD COLUMN configured_agents TEXT;
