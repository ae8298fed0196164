"""The protocols that Hutch implements, one package each."""
