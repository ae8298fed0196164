"""MCP over stdio and HTTP, and the processes of stdio servers."""
