"""XLA's compiler in a process of its own: requests, children that end at the schedule, cache,
repeated schedules.
"""
