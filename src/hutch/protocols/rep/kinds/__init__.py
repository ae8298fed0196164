"""Step kinds: the operations that a step of a flow can perform."""
