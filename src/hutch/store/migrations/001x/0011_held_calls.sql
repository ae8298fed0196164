-- The server that makes an approved call extends `held_until`. If it dies, another server tells the guest.

ALTER TABLE pending_calls ADD COLUMN holder TEXT;
ALTER TABLE pending_calls ADD COLUMN held_until TEXT;
