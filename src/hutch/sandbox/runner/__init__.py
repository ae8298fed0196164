"""Runner processes: profile, launch, life cycle, pipes."""
