"""A profile compared with a module: what XLA looks up, coverage, gaps, contention."""
