"""Steps whose tool calls survive the end of the runtime."""
