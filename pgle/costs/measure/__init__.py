"""Measure the costs of a trace, and make a profile of them."""
