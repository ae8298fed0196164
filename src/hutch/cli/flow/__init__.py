"""Implements `hutch flow`."""
