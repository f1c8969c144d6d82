"""XLA's log and schedule dumps, read to a verdict on each module."""
