"""Installs packages with a jailed Deno process."""
