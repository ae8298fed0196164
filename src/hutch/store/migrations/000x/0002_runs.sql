-- Run records. They outlive their owner as an audit trail.

CREATE TABLE runs (
    run_id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    door TEXT NOT NULL,
    engine TEXT NOT NULL,
    label TEXT,
    started_at TEXT NOT NULL,
    duration_ms DOUBLE PRECISION NOT NULL,
    outcome TEXT NOT NULL,
    details TEXT NOT NULL
);
CREATE INDEX runs_of_owner ON runs (owner, started_at, run_id);
CREATE INDEX runs_by_time ON runs (started_at);
