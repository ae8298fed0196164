"""Explains which extra of the package a command needs."""

from __future__ import annotations

# Packages that are installed only with an extra: their top-level modules, with the extra.
_EXTRAS = {
    "httpx2": "mcp",
    "mcp": "mcp",
    "mcp_types": "mcp",
    "nats": "cluster",
    "nkeys": "cluster",
    "rapidfuzz": "mcp",
    "cronsim": "server",
    "prometheus_client": "server",
    "psycopg": "server",
    "sse_starlette": "server",
    "starlette": "server",
    "structlog": "server",
    "uvicorn": "server",
}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Returns a message with the command that installs the missing package. Returns None if the module
    does not belong to an extra of Hutch.
    """
    module = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(module)
    if extra is None:
        return None
    return f"This command needs the package {module}. Install it with: pip install 'hutch[{extra}]'"
