"""Web console: its page, signing in, and the data that only the console needs."""
