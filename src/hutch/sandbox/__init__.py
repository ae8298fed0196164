"""Runs guests: pool, runner processes, jail, self-test."""
