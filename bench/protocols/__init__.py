"""Benchmarks of TPMJS, Toolscript, Abilities, flows and MCP."""
