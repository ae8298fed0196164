"""Helpers that the commands share: output, prompts, arguments and the event loop."""
