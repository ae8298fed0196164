"""Composition root: builds all components from Settings, and opens and closes them."""
