"""The tables, one numbered file a step."""
