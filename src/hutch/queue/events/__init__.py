"""Events of runs for followers at other servers."""
