"""Numbered SQL migrations."""
