"""HTTP proxy through which jails reach the network."""
