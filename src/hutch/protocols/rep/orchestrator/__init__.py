"""REP orchestrator: starts a runtime, negotiates and polls a run to its end."""
