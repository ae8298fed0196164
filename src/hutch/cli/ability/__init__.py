"""`hutch ability`, except imports."""
