"""Secrets: the master key, sealing, and what is kept sealed."""
