"""Traces as one columnar table, and the readers and writers of profiler formats."""
