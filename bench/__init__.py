"""Benchmarks of speed and memory; each baseline is measured in the same run."""
