-- Queue of asynchronous runs. Times are milliseconds since 1970 by the clock of the database, so that the clocks of the
-- servers do not matter.

CREATE TABLE queued_runs (
    run_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    -- The caller: id of the API key and JSON list of its scopes; NULL for the operator.
    key_id TEXT,
    scopes TEXT,
    -- `code`, `tool`, `script`, `ability` or `flow`, and the protocol of its record.
    kind TEXT NOT NULL,
    protocol TEXT NOT NULL,
    label TEXT,
    -- What has added the run: `schedule ID` or `trigger ID`; NULL for a request.
    source TEXT,
    -- `delayed` until `due_at`; `queued`; `running`; `ended`; `dead` when all attempts have failed.
    state TEXT NOT NULL CHECK (state IN ('delayed', 'queued', 'running', 'ended', 'dead')),
    priority BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    -- Order of runs that were added in the same millisecond.
    place BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    deadline_at BIGINT,
    -- How often the run may be started although it may have had effects; NULL for once.
    max_attempts BIGINT,
    attempts BIGINT NOT NULL,
    -- Changes with every start. A server with an older one does not have the run any more.
    generation BIGINT NOT NULL,
    holder TEXT,
    held_until BIGINT,
    -- True when the run may have had effects outside of the sandbox.
    has_effects BOOLEAN NOT NULL,
    is_cancelled BOOLEAN NOT NULL,
    idempotency_key TEXT,
    -- SHA-256 of the request, to compare it with another one that has the same key.
    digest TEXT NOT NULL,
    -- Encrypted: the request, the webhook with its secret, the result.
    request TEXT NOT NULL,
    webhook TEXT,
    started_at BIGINT,
    ended_at BIGINT,
    outcome TEXT,
    result TEXT
);
CREATE UNIQUE INDEX queued_runs_by_key ON queued_runs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX queued_runs_waiting ON queued_runs (owner, priority DESC, created_at, place) WHERE state = 'queued';
CREATE INDEX queued_runs_delayed ON queued_runs (due_at) WHERE state = 'delayed';
CREATE INDEX queued_runs_leases ON queued_runs (held_until) WHERE state = 'running';
CREATE INDEX queued_runs_deadlines ON queued_runs (deadline_at) WHERE deadline_at IS NOT NULL AND ended_at IS NULL;
CREATE INDEX queued_runs_ended ON queued_runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX queued_runs_dead ON queued_runs (owner, ended_at) WHERE state = 'dead';

-- Webhooks: one row for each message about a run. URL, secret and payload are encrypted in `message`.
CREATE TABLE webhook_deliveries (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    owner TEXT NOT NULL,
    event TEXT NOT NULL,
    -- `pending`, `delivered` or `failed`.
    state TEXT NOT NULL CHECK (state IN ('pending', 'delivered', 'failed')),
    created_at BIGINT NOT NULL,
    next_at BIGINT NOT NULL,
    -- Attempts stop at this time.
    gives_up_at BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    holder TEXT,
    held_until BIGINT NOT NULL,
    -- JSON list of the last attempts: time, status, duration, error.
    history TEXT NOT NULL,
    message TEXT NOT NULL
);
CREATE INDEX webhook_deliveries_due ON webhook_deliveries (next_at) WHERE state = 'pending';
CREATE INDEX webhook_deliveries_of_owner ON webhook_deliveries (owner, created_at, id);
CREATE INDEX webhook_deliveries_of_run ON webhook_deliveries (run_id);
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (created_at);

-- The secrets with which webhooks are signed, encrypted, one for each owner.
CREATE TABLE webhook_secrets (
    owner TEXT PRIMARY KEY,
    secret TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
