"""Cost profiles: the value, its files, diff and merge."""
