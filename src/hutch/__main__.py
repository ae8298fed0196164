"""Runs the CLI: `python -m hutch`."""

from hutch.cli import run

run()
