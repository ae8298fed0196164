"""Type-checks and rewrites scripts before they run."""
