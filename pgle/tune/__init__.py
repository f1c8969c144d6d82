"""The search for flags: the trials, the worlds that judge them, and when it is accepted."""
