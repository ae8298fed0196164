"""The Execbox door: guest code that calls its host's tools over six messages."""
