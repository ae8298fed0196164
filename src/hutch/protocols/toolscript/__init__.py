"""Toolscript: typed scripts over MCP servers."""
