"""Toolscripts that are stored while they wait for approvals, and run again after a restart."""
