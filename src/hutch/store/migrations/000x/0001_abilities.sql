-- Users with their API keys, credentials and abilities.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    data_key TEXT NOT NULL,
    created_at TEXT NOT NULL
);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE,
    hint TEXT NOT NULL,
    scopes TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT,
    revoked_at TEXT,
    last_used_at TEXT
);
CREATE INDEX api_keys_of_user ON api_keys (user_id, created_at);

CREATE TABLE credentials (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    domain TEXT NOT NULL,
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    sealed TEXT NOT NULL,
    hint TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'expired')),
    expired_at TEXT,
    cause TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
);
-- Header names are case-insensitive.
CREATE UNIQUE INDEX credentials_of_user ON credentials (user_id, domain, kind, lower(key));

-- Current versions; `ability_versions` has all versions including the current one.
CREATE TABLE abilities (
    owner_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    ability_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    shared BOOLEAN NOT NULL,
    name TEXT NOT NULL,
    service_name TEXT NOT NULL,
    description TEXT NOT NULL,
    document TEXT NOT NULL,
    requires_dynamic_headers BOOLEAN NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (owner_id, ability_id)
);
-- Ids of shared abilities are unique: the first user to share an id owns it.
CREATE UNIQUE INDEX abilities_shared ON abilities (ability_id) WHERE shared;

CREATE TABLE ability_versions (
    owner_id TEXT NOT NULL,
    ability_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    shared BOOLEAN NOT NULL,
    name TEXT NOT NULL,
    service_name TEXT NOT NULL,
    description TEXT NOT NULL,
    document TEXT NOT NULL,
    requires_dynamic_headers BOOLEAN NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (owner_id, ability_id, version),
    FOREIGN KEY (owner_id, ability_id) REFERENCES abilities (owner_id, ability_id) ON DELETE CASCADE
);

-- Search index. `audience` is the owner's id, or '*' for shared abilities.
CREATE TABLE ability_words (
    owner_id TEXT NOT NULL,
    ability_id TEXT NOT NULL,
    word TEXT NOT NULL,
    weight BIGINT NOT NULL,
    audience TEXT NOT NULL,
    PRIMARY KEY (owner_id, ability_id, word),
    FOREIGN KEY (owner_id, ability_id) REFERENCES abilities (owner_id, ability_id) ON DELETE CASCADE
);
CREATE INDEX ability_words_by_word ON ability_words (audience, word, weight DESC, owner_id, ability_id);
