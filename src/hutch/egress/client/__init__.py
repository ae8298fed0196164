"""HTTP/1.1 client that adds credentials and enforces the egress policy."""
