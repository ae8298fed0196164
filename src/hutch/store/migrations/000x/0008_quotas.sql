-- Limits of single owners and keys, and their usage on each day (UTC). A subject is the id of a user or an
-- API key, or the name of an owner that is not a user.

CREATE TABLE quotas (
    subject TEXT PRIMARY KEY,
    quota TEXT NOT NULL,
    updated_at TEXT NOT NULL
);

CREATE TABLE usage_days (
    subject TEXT NOT NULL,
    day TEXT NOT NULL,
    executions BIGINT NOT NULL,
    cpu_seconds DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (subject, day)
);
CREATE INDEX usage_days_by_day ON usage_days (day);
