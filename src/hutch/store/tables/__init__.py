"""One module per database table."""
