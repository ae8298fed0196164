"""Numbered SQL migrations, ten in a folder: `001x` has the numbers 10 to 19."""
