"""Connections of the HTTP server: their limits, and the protocols of uvicorn that enforce them."""
