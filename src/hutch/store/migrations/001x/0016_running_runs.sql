-- Runs in progress that take longer than a second. If their process dies, they get a record as `interrupted`.

CREATE TABLE running_runs (
    run_id TEXT PRIMARY KEY,
    -- Process that executes the run, and the last time at which it reported to be alive.
    holder TEXT NOT NULL,
    seen_at TEXT NOT NULL,
    -- The record that the run gets if the process dies: a JSON text, without contents.
    record TEXT NOT NULL
);
CREATE INDEX running_runs_by_holder ON running_runs (holder);
