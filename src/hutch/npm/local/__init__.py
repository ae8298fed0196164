"""Unpublished packages: folders, and archives made by `npm pack`."""
