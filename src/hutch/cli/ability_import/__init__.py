"""Makes abilities from curl commands, HAR files and OpenAPI documents."""
