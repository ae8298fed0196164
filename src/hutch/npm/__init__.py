"""The shelf: npm packages by name and version, installed once, kept read-only."""
