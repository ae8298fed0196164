"""Self-test: tries forbidden actions inside the jail at start-up, and reports which were refused."""
