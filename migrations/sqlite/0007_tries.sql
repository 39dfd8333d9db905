-- Attempts that met a transient fault since the step's time to complete was last given anew. While such a step
-- is pending, `complete_by` less `ready_at` is what is left of that time.
ALTER TABLE steps ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
