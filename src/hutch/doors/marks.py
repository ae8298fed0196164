"""What requests carry between the rooms, and what is said at every door. Loads nothing else."""

from __future__ import annotations

# Set by who serves an application to a jail, where no client of HTTP can: the run that is calling.
RUN = "hutch.run"
# The same from a jail of another process: whoever has the token can say so.
RUN_HEADER = "x-hutch-run"
# Set by a door for those behind it: who was let in.
VISITOR = "hutch.visitor"
SHUTTING_DOWN = "The server is shutting down"
