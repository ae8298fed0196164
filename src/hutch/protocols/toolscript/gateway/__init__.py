"""HTTP interface to the user's MCP servers: catalog, search, calls, approvals."""
