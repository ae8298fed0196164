"""Transports of Execbox messages: pipes, sockets, WebSocket."""
