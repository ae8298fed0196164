"""Generates the TypeScript module and types of MCP tools."""
