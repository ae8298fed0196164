"""Runs executions: limits, engine choice, run records, metrics."""
