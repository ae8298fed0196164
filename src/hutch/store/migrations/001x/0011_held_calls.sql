-- The server that makes an approved call is its `holder` and extends `held_until`. If this server dies, another server
-- gives the guest an error for the call.

ALTER TABLE pending_calls ADD COLUMN holder TEXT;
ALTER TABLE pending_calls ADD COLUMN held_until TEXT;
