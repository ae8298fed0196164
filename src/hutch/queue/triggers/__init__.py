"""Triggers: runs of flows and saved scripts that requests of other services start."""
