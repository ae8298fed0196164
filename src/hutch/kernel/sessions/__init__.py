"""Stateful sessions: code runs in turns that share their variables."""
