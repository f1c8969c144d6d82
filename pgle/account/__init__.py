"""One account of a step: what it takes, what it consists of, and what would shorten it."""
