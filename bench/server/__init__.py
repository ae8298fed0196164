"""Benchmarks of what a server adds: records, fairness, the console, the queue and the cluster."""
