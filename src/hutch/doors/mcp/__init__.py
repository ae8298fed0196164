"""The MCP door: Hutch itself as an MCP server, so that any client has code mode with one entry."""
