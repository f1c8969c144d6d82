"""From a trace to a profile."""
