"""Byte streams: lines of bounded length, and stdin and stdout as a transport."""
