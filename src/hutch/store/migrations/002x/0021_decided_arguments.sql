-- The record of a decision says which arguments of the call were decided on.

-- SHA-256 of the arguments that were approved or denied.
ALTER TABLE pending_calls ADD COLUMN decided_digest TEXT;
