"""What a run does over time: its timeline, its events while it runs, and its log lines for a callback."""
