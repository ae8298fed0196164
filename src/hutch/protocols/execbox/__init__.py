"""Execbox over WebSocket."""
