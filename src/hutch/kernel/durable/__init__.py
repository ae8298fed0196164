"""Suspended runs: checkpoints, pending calls and their results, and resuming."""
