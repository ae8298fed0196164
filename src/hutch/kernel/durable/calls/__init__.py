"""Tool calls of durable runs: held until the run is stored, replayed, or pending."""
