"""Tool calls that guests make."""
