"""HTTP interface for flows and runs."""
