"""`hutch tool` and `hutch packages`."""
