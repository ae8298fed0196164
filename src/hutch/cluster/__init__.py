"""Many machines: fronts place executions on workers, which they reach over NATS."""
