"""REP: flows, runtime and orchestrator over JSON-RPC."""
