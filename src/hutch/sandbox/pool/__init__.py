"""Pool of runners: leases, warm runners, spares, statistics."""
