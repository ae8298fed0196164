"""REP: flows over a language-neutral runtime protocol, both sides."""
