"""Tables of suspended runs, of runs in progress, and of stateful sessions."""

PART_BYTES = 512 * 1024
"""Maximum size of a part of a state. Each part is a row."""
