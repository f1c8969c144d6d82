"""A profile held against a module: what XLA looks up, coverage, gaps, contention."""
