"""`hutch runtime cache clear`: forgets what runtimes said that they can."""

from __future__ import annotations

from hutch.doors.rep.negotiation import forget


def clear(engine: str | None) -> int:
    gone = forget(engine)
    for file in gone:
        print(f"removed {file}")
    if not gone:
        print("there is nothing to clear" if engine is None else f"nothing is kept of {engine}")
    return 0
