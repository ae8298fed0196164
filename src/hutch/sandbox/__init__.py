"""Where it runs: engines, jail, warm pool, meters, doctor."""
