"""Tables of suspended runs, of runs in progress, and of stateful sessions."""
