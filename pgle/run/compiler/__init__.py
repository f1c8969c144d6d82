"""XLA's compiler in its own process: requests, children that end at the schedule, cache, repeated
schedules.
"""
