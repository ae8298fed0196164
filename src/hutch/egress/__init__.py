"""The way out: who may be reached, under which address, and through what."""
