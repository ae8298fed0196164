"""Steps that do not repeat their finished tool calls if the runtime process ends."""
