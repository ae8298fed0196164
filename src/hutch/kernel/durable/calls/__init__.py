"""Tool calls of durable runs: delays them until the run is stored, replays them, and stores their results."""
