"""Whether a program is a REP runtime: what it is asked, what it should say, and a report of that."""
