-- Suspended runs: their state, encrypted in parts, and the tool calls whose results they wait for.

CREATE TABLE checkpoints (
    run_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    protocol TEXT NOT NULL,
    -- Digest of the guest bundle. Only the same bundle can continue the run.
    bundle TEXT NOT NULL,
    -- Counts how often the run was suspended.
    generation BIGINT NOT NULL,
    -- `suspended`; `running` while a process continues the run; `called` when the run has called a tool since then;
    -- `ended`.
    state TEXT NOT NULL CHECK (state IN ('suspended', 'running', 'called', 'ended')),
    holder TEXT,
    held_until TEXT,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    -- Encrypted result of a run that has ended.
    result TEXT
);
CREATE INDEX checkpoints_of_owner ON checkpoints (owner, created_at, run_id);
CREATE INDEX checkpoints_by_expiry ON checkpoints (expires_at);

CREATE TABLE checkpoint_parts (
    run_id TEXT NOT NULL REFERENCES checkpoints (run_id) ON DELETE CASCADE,
    part BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (run_id, part)
);

CREATE TABLE pending_calls (
    run_id TEXT NOT NULL REFERENCES checkpoints (run_id) ON DELETE CASCADE,
    call_id TEXT NOT NULL,
    -- SHA-256 of the token with which the result can be delivered.
    token_digest TEXT UNIQUE,
    -- Encrypted question, if the call waits for an approval.
    question TEXT,
    -- `allow` or `deny`. Written before an approved call is made.
    decision TEXT,
    decided_by TEXT,
    decided_at TEXT,
    -- Encrypted result of the call.
    answer TEXT,
    PRIMARY KEY (run_id, call_id)
);
