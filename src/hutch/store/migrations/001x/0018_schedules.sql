-- Saved scripts, and what starts flows and scripts without a request of their owner: schedules and triggers.

CREATE TABLE saved_scripts (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    -- `script` for a toolscript; `quickjs` or `deno` for code whose inputs are variables.
    engine TEXT NOT NULL,
    updated_at BIGINT NOT NULL,
    -- Encrypted.
    code TEXT NOT NULL,
    PRIMARY KEY (owner, name)
);

CREATE TABLE schedules (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    scopes TEXT,
    name TEXT NOT NULL,
    -- `flow` or `script`, and its name.
    target_kind TEXT NOT NULL,
    target TEXT NOT NULL,
    cron TEXT NOT NULL,
    timezone TEXT NOT NULL,
    -- `skip`, `once` or `all`.
    missed TEXT NOT NULL,
    is_paused BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    next_at BIGINT NOT NULL,
    last_at BIGINT,
    last_run_id TEXT,
    -- Encrypted JSON: inputs, webhook and attempts.
    options TEXT NOT NULL,
    UNIQUE (owner, name)
);
CREATE INDEX schedules_due ON schedules (next_at) WHERE NOT is_paused;

CREATE TABLE triggers (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    scopes TEXT,
    name TEXT NOT NULL,
    target_kind TEXT NOT NULL,
    target TEXT NOT NULL,
    -- SHA-256 of the secret part of its URL.
    token_digest TEXT NOT NULL UNIQUE,
    -- `none`, `github`, `stripe` or `standard`.
    signature TEXT NOT NULL,
    is_paused BOOLEAN NOT NULL,
    created_at BIGINT NOT NULL,
    last_at BIGINT,
    last_run_id TEXT,
    -- Encrypted JSON: secret of the signature, inputs, webhook and attempts.
    options TEXT NOT NULL,
    UNIQUE (owner, name)
);
