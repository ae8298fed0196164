"""Implements `hutch runtime`."""
