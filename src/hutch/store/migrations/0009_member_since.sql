-- When a user joined a group. An ability that was shared with the group before counts as shared from then on.
ALTER TABLE group_members ADD COLUMN created_at TEXT NOT NULL DEFAULT '';
