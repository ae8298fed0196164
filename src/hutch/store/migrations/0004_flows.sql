-- Flows by name, runs of flows, and what each did so far.

-- The current version of each; `flow_versions` has all, this one too. The owner is a user, or whoever runs the server.
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

-- `holder` is the process that runs it, or '' for none; `seen_at` when that said last that it is still there.
-- `claims` counts how often it was begun without getting any further than `claimed_steps`.
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

-- In the order of `number`: events and, with the step that is over, results.
CREATE TABLE flow_journal (
    run_id TEXT NOT NULL REFERENCES flow_runs (run_id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    step TEXT,
    body TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
);
CREATE INDEX flow_journal_steps ON flow_journal (run_id, number) WHERE step IS NOT NULL;

-- What somebody asks of a run that another process has: to end, or to go on after an approval.
CREATE TABLE flow_requests (
    run_id TEXT NOT NULL REFERENCES flow_runs (run_id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (run_id, id)
);
