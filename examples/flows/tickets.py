"""An MCP server with one tool. It stores tickets as lines of the file that `TICKETS` names."""

import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("tickets")


@server.tool()
def open_ticket(title: str) -> dict[str, int]:
    """Open a ticket and return its number."""
    file = Path(os.environ["TICKETS"])
    with file.open("a") as tickets:
        tickets.write(f"{title}\n")
    return {"number": len(file.read_text().splitlines())}


if __name__ == "__main__":
    server.run("stdio")
