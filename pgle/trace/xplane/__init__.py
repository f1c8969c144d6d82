"""JAX profiler traces: read as a Trace, and written from one."""
