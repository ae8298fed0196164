"""The Abilities door: API wrappers run here, with secrets that their code never sees."""
