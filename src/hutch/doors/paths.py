"""Routes for clients that put a base and a path together without looking: `//health`, `/api/health`."""

from __future__ import annotations

import re

from starlette.routing import Match, Route
from starlette.types import Scope

# Where the path of a request is kept as the routes know it.
CANONICAL = "hutch.path"

_SLASHES = re.compile("/{2,}")


class Lane(Route):
    """A route that is also found below `/api` and with slashes too many."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        path = scope.get(CANONICAL)
        if path is None:
            # Every route is asked until one matches.
            path = scope[CANONICAL] = canonical(scope["path"])
        return super().matches(scope if path == scope["path"] else {**scope, "path": path})


def canonical(path: str) -> str:
    path = _SLASHES.sub("/", path)
    return path.removeprefix("/api") if path.startswith("/api/") else path
