"""Builds the documentation site: `python -m docs.site`, or `make docs`."""
