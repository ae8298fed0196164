"""`python -m hutch`: the same as `hutch`."""

from hutch.cli import main

main()
