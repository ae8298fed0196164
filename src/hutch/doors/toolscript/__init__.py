"""Toolscript: all MCP tools as one typed module, and the scripts that use it."""
