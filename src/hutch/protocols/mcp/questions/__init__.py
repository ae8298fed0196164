"""Questions to the client's user: approvals of tool calls, and input that MCP servers ask for."""
