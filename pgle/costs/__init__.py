"""Cost profiles: read, write, merge, diff, aggregate from traces, hold against modules."""
