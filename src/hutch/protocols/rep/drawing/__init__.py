"""Draws flows as text."""
