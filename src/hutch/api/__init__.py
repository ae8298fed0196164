"""Python API: `hutch.Hutch`, `hutch.connect` and `hutch.run_sync`."""
