"""Conformance suites for other implementations: TPMJS executors and REP runtimes."""
