"""Cost of run records: of each protocol as its users call it, and in the kernel."""
