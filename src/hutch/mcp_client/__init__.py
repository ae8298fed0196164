"""MCP client: configuration of MCP servers, connections, tools and logins."""
