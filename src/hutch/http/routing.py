"""Routes that tolerate carelessly joined URLs such as `//health` and `/api/health`."""

from __future__ import annotations

import re

from starlette.routing import Match, Route
from starlette.types import Scope

# Scope key under which the canonical path is cached.
CANONICAL_PATH = "hutch.path"

_SLASHES = re.compile("/{2,}")


class PrefixRoute(Route):
    """A route that also matches below `/api` and with repeated slashes."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        path = scope.get(CANONICAL_PATH)
        if path is None:
            # Cache the path, because Starlette asks every route until one matches.
            path = scope[CANONICAL_PATH] = canonical_path(scope["path"])
        return super().matches(scope if path == scope["path"] else {**scope, "path": path})


def canonical_path(path: str) -> str:
    path = _SLASHES.sub("/", path)
    return path.removeprefix("/api") if path.startswith("/api/") else path
