"""Tests a REP runtime over stdin and stdout."""
