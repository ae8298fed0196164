-- Sliding-window counters for processes that share a database. UNLOGGED: losing them in a crash only lets a few
-- more requests through, so they are not worth waiting for the disk.

CREATE /*postgres: UNLOGGED*/ TABLE rate_limits (
    key TEXT PRIMARY KEY,
    slot BIGINT NOT NULL,
    hits BIGINT NOT NULL,
    hits_before BIGINT NOT NULL,
    ends_at DOUBLE PRECISION NOT NULL
);
CREATE INDEX rate_limits_by_end ON rate_limits (ends_at);
