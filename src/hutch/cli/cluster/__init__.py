"""`hutch worker` and `hutch cluster`."""
