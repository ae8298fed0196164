-- Set if a process asks for the cancellation of a run that another process continues: the time of this request. The
-- other process then stops the run.

ALTER TABLE checkpoints ADD COLUMN cancel_requested_at TEXT;
