-- What is kept of every run. They outlive their owner: they say what was done in its name.

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
