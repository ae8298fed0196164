"""Records of the runs of all protocols: list, details, events, cancellation and replay."""
