"""ASGI middleware of the server: CORS headers, and headers about runs and traces."""
