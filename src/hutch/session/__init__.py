"""What is said: Execbox messages, both sides of a session, channels, providers."""
