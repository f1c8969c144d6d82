"""The search for flags: its trials, the worlds that judge them, and when pgle accepts a setting."""
