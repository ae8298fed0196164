"""JSON Schema: generation from type hints, conversion to TypeScript, validation and its cost."""
