-- The decision on a call names its arguments.

-- SHA-256 of the arguments that were approved or denied.
ALTER TABLE pending_calls ADD COLUMN decided_digest TEXT;
