"""One account of a step: its length, its parts, and the changes that would shorten it."""
