"""Timeline of a run, its events while it runs, and its log lines for a callback."""
