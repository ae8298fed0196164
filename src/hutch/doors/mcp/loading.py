"""Brings in the SDK, which takes a second, without keeping the event loop from others."""

from __future__ import annotations

import asyncio
from importlib import import_module


async def load() -> None:
    """Afterwards `hutch.doors.mcp.server` can be imported at no cost."""
    await asyncio.to_thread(_load)


def _load() -> None:
    # The SDK imports itself in circles: of two threads that begin at different ends, one finds it half done.
    # That of the upstream servers may be at it, and begins here.
    import_module("hutch.upstream.connection")
    import_module("hutch.doors.mcp.server")
