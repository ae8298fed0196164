"""Abilities: API wrappers that run with a user's credentials."""
