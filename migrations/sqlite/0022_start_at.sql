-- When a task begins that was submitted for later; null once it has begun. Until then it is found by overdue_at.
ALTER TABLE tasks ADD COLUMN start_at INTEGER;
