"""Suspended runs: their checkpoints, the results that they wait for, and how they continue."""
