-- Tool calls, with their results, of runs whose guests cannot be stored, such as toolscripts.

CREATE TABLE recorded_calls (
    run_id TEXT NOT NULL,
    number BIGINT NOT NULL,
    owner TEXT NOT NULL,
    server TEXT NOT NULL,
    tool TEXT NOT NULL,
    -- SHA-256 of the arguments.
    digest TEXT NOT NULL,
    -- Encrypted result or error. NULL while the call is being made.
    answer TEXT,
    bytes BIGINT NOT NULL,
    expires_at TEXT NOT NULL,
    PRIMARY KEY (run_id, number)
);
CREATE INDEX recorded_calls_by_expiry ON recorded_calls (expires_at);
CREATE INDEX recorded_calls_by_owner ON recorded_calls (owner);
