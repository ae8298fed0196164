-- Set for a pending call that a process was making when its run was stored: `repeatable` if its tool is idempotent,
-- otherwise `once`. NULL for a call whose result comes later.

ALTER TABLE pending_calls ADD COLUMN in_flight TEXT;
