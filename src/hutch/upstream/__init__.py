"""Other people's tools: MCP servers as providers."""
