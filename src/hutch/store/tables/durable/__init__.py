"""Suspended runs, and sessions whose turns share their variables."""
