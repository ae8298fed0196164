"""OAuth for MCP servers: logins with a browser, stored tokens, and rules for requests."""
