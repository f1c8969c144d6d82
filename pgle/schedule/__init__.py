"""Simulate a scheduled module with costs, and read what bounds it."""
