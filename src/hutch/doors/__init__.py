"""Who may come in: one folder a protocol."""
