-- Groups of users, and the users and groups with whom the owner of an ability shares it.

CREATE TABLE user_groups (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL
);

CREATE TABLE group_members (
    group_id TEXT NOT NULL REFERENCES user_groups (id) ON DELETE CASCADE,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    PRIMARY KEY (group_id, user_id)
);
CREATE INDEX group_members_by_user ON group_members (user_id, group_id);

-- Each row has either a user or a group.
CREATE TABLE ability_shares (
    owner_id TEXT NOT NULL,
    ability_id TEXT NOT NULL,
    user_id TEXT REFERENCES users (id) ON DELETE CASCADE,
    group_id TEXT REFERENCES user_groups (id) ON DELETE CASCADE,
    created_at TEXT NOT NULL,
    CHECK ((user_id IS NULL) <> (group_id IS NULL)),
    FOREIGN KEY (owner_id, ability_id) REFERENCES abilities (owner_id, ability_id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX ability_shares_by_user ON ability_shares (user_id, ability_id, owner_id) WHERE user_id IS NOT NULL;
CREATE UNIQUE INDEX ability_shares_by_group ON ability_shares (group_id, ability_id, owner_id) WHERE group_id IS NOT NULL;
CREATE INDEX ability_shares_by_ability ON ability_shares (owner_id, ability_id);
