"""Host functions that guests can call: tools, providers and their names."""
