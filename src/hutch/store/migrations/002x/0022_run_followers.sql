-- Clients that follow the events of a run that another server executes. That other server stores new events for each
-- follower, and the server to which the follower is connected reads and deletes them. Times are by the clock of the
-- database.

CREATE TABLE run_followers (
    id TEXT PRIMARY KEY,
    run_id TEXT NOT NULL,
    -- Number of the last event that the follower has, and an offset that is added to the numbers that are sent.
    after_number BIGINT NOT NULL,
    number_offset BIGINT NOT NULL,
    -- The server to which the follower is connected renews this time while the client is connected.
    expires_at BIGINT NOT NULL
);
CREATE INDEX run_followers_by_expiry ON run_followers (expires_at);

CREATE TABLE followed_events (
    follower TEXT NOT NULL REFERENCES run_followers (id) ON DELETE CASCADE,
    -- Order of the rows of one follower.
    part BIGINT NOT NULL,
    -- Number of the last event that the follower has after this row.
    number BIGINT NOT NULL,
    -- True if the run has ended with the last of these events.
    is_end BOOLEAN NOT NULL,
    -- Encrypted server-sent events.
    data TEXT NOT NULL,
    PRIMARY KEY (follower, part)
);
