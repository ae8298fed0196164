-- Time at which the cancellation of a run was requested that another process continues. That process stops the run.

ALTER TABLE checkpoints ADD COLUMN cancel_requested_at TEXT;
