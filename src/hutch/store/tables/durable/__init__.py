"""Suspended runs, and sessions whose turns share their variables."""

PART_BYTES = 512 * 1024
"""Maximum size of a part of a state. Each part is a row."""
