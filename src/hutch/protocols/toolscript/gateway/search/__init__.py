"""Tool search: index, words and stems, synonyms."""
