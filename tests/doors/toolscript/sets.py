"""A few servers and tools, and what of a gateway can be read."""

from __future__ import annotations

from tests.doors.toolscript.scripted import Given, Server

SCHEMA = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
TOOLS = (
    Given("github", "create_issue", "Creates an issue.", SCHEMA, SCHEMA),
    Given("github", "get_user", "Gets a user."),
    Given("github", "get-user"),
    Given("mail", "send", "Sends a message.", {"type": "objekt"}),
)
SERVERS = (
    Server("github", "GitHub", "Be careful.", warnings=("two tools were left out",)),
    Server("mail"),
    Server("broken", state="failed", error="there is no program of this name"),
)
READ = ["/servers", "/tools", "/search?q=x", "/search/stats", "/runtime/tools.ts", "/runtime/tools.d.ts"]
