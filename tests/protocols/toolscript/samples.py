"""Sample servers and tools, and the paths of the gateway that scripts may read."""

from __future__ import annotations

from tests.protocols.toolscript.fakes import FakeServer, FakeTool

SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
TOOLS = (
    FakeTool("github", "create_issue", "Creates an issue.", SCHEMA, SCHEMA),
    FakeTool("github", "get_user", "Gets a user."),
    FakeTool("github", "get-user"),
    FakeTool("mail", "send", "Sends a message.", {"type": "objekt"}),
)
SERVERS = (
    FakeServer("github", "GitHub", "Be careful.", warnings=("two tools were left out",)),
    FakeServer("mail"),
    FakeServer("broken", state="failed", error="there is no program of this name"),
)
SCRIPT_PATHS = [
    "/servers",
    "/tools",
    "/search?q=x",
    "/search/stats",
    "/runtime/tools.ts",
    "/runtime/tools.d.ts",
]
