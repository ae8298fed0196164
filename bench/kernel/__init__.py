"""Benchmarks of the engines and of durable executions."""
