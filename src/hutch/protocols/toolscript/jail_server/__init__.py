"""HTTP server through which a script in a jail reaches the gateway."""
