"""Cost profiles: measure them from traces, read, write, merge and compare them, and estimate
missing costs.
"""
