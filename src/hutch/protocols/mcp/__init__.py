"""Hutch as an MCP server."""
