-- Run records with error messages and contents, both encrypted, and with the columns by which lists are
-- filtered.

ALTER TABLE runs RENAME COLUMN door TO protocol;
-- Time at which the run was requested.
ALTER TABLE runs RENAME COLUMN started_at TO created_at;
ALTER TABLE runs ADD COLUMN parent_run_id TEXT;
-- Level of the setting `record` with which the run was recorded.
ALTER TABLE runs ADD COLUMN recorded TEXT NOT NULL DEFAULT 'metadata';
ALTER TABLE runs ADD COLUMN error_message TEXT;
-- Size of the record with its content, for the limit of all records together.
ALTER TABLE runs ADD COLUMN bytes BIGINT NOT NULL DEFAULT 0;

-- Contents have their own table, so that lists of runs do not have to read past them.
CREATE TABLE run_contents (
    run_id TEXT PRIMARY KEY REFERENCES runs (run_id) ON DELETE CASCADE,
    content TEXT NOT NULL
);

-- Tools that a run called and hosts that it reached.
CREATE TABLE run_targets (
    kind TEXT NOT NULL CHECK (kind IN ('tool', 'host')),
    name TEXT NOT NULL,
    created_at TEXT NOT NULL,
    run_id TEXT NOT NULL REFERENCES runs (run_id) ON DELETE CASCADE,
    PRIMARY KEY (kind, name, created_at, run_id)
);
CREATE INDEX run_targets_of_run ON run_targets (run_id, kind, name);

-- The outcome is part of the index, so that counting reads only the index.
DROP INDEX runs_by_time;
DROP INDEX runs_of_owner;
CREATE INDEX runs_by_time ON runs (created_at, run_id, outcome);
CREATE INDEX runs_of_owner ON runs (owner, created_at, run_id, outcome);
CREATE INDEX runs_failed ON runs (created_at, run_id) WHERE outcome <> 'ok';
CREATE INDEX runs_failed_of_owner ON runs (owner, created_at, run_id) WHERE outcome <> 'ok';
CREATE INDEX runs_by_outcome ON runs (outcome, created_at, run_id);
CREATE INDEX runs_by_protocol ON runs (protocol, created_at, run_id);
CREATE INDEX runs_by_label ON runs (label, created_at, run_id);
CREATE INDEX runs_of_parent ON runs (parent_run_id, created_at, run_id) WHERE parent_run_id IS NOT NULL;
CREATE INDEX runs_by_duration ON runs (duration_ms, run_id);
CREATE INDEX runs_of_owner_by_duration ON runs (owner, duration_ms, run_id);
