"""Negotiated extensions of the Execbox WebSocket: files, and runs that can be suspended."""
