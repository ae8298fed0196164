-- Flows, flow runs and their journals.

-- Current versions; `flow_versions` has all versions including the current one. The owner is a user or the operator.
CREATE TABLE flows (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    document TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (owner, name)
);

CREATE TABLE flow_versions (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    document TEXT NOT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    PRIMARY KEY (owner, name, version),
    FOREIGN KEY (owner, name) REFERENCES flows (owner, name) ON DELETE CASCADE
);

-- `holder` is the id of the process that runs the flow, or ''; `seen_at` is the time of its last heartbeat. `claims`
-- counts the starts of the run since it last had more finished steps than `claimed_steps`.
CREATE TABLE flow_runs (
    run_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    flow TEXT NOT NULL,
    version BIGINT,
    origin TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'completed', 'failed')),
    outcome TEXT,
    created_at TEXT NOT NULL,
    started_at TEXT,
    ended_at TEXT,
    holder TEXT NOT NULL,
    seen_at TEXT,
    claims BIGINT NOT NULL,
    claimed_steps BIGINT NOT NULL,
    document TEXT NOT NULL,
    inputs TEXT NOT NULL,
    options TEXT NOT NULL,
    summary TEXT
);
CREATE INDEX flow_runs_of_owner ON flow_runs (owner, created_at, run_id);
CREATE INDEX flow_runs_by_time ON flow_runs (created_at, run_id);
CREATE INDEX flow_runs_by_end ON flow_runs (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX flow_runs_open ON flow_runs (created_at) WHERE ended_at IS NULL;

-- Events and, if `step` is set, results of finished steps, ordered by `number`.
CREATE TABLE flow_journal (
    run_id TEXT NOT NULL REFERENCES flow_runs (run_id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    step TEXT,
    body TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
);
CREATE INDEX flow_journal_steps ON flow_journal (run_id, number) WHERE step IS NOT NULL;

-- Requests to a run that another process holds: cancel, or resume after an approval.
CREATE TABLE flow_requests (
    run_id TEXT NOT NULL REFERENCES flow_runs (run_id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run_id, id)
);
