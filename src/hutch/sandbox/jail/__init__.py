"""Isolation of a runner: namespaces, seccomp, cgroup, network namespace."""
