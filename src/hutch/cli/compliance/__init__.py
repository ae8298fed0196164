"""Tests any TPMJS executor over HTTP against the specification, and against what it leaves open."""
