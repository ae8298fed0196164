"""Implements `hutch user`, `key`, `credential`, `vault`, `backup` and `restore`."""
