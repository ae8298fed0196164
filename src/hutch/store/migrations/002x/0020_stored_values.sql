-- Large results of code that later calls of the same owner can use, encrypted in parts.

CREATE TABLE stored_values (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (owner, name)
);
CREATE INDEX stored_values_by_expiry ON stored_values (expires_at);

CREATE TABLE stored_value_parts (
    owner TEXT NOT NULL,
    name TEXT NOT NULL,
    part BIGINT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (owner, name, part),
    FOREIGN KEY (owner, name) REFERENCES stored_values (owner, name) ON DELETE CASCADE
);
