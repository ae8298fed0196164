-- Stateful sessions: the state after each of the last turns, encrypted in parts.

CREATE TABLE sessions (
    session_key TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    -- Digest of the guest bundle. Only the same bundle can run the next turn.
    bundle TEXT NOT NULL,
    turn BIGINT NOT NULL,
    -- Random, changes with each write, so that a process notices that another one has used the session.
    version TEXT NOT NULL,
    -- The process that has the session in memory.
    holder TEXT,
    held_until TEXT,
    created_at TEXT NOT NULL,
    used_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    UNIQUE (owner, name)
);
CREATE INDEX sessions_by_expiry ON sessions (expires_at);

CREATE TABLE session_parts (
    session_key TEXT NOT NULL REFERENCES sessions (session_key) ON DELETE CASCADE,
    turn BIGINT NOT NULL,
    part BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (session_key, turn, part)
);
