-- Time at which a user joined a group. For this user, an ability that was shared with the group earlier
-- counts as shared from that time on.
ALTER TABLE group_members ADD COLUMN created_at TEXT NOT NULL DEFAULT '';
