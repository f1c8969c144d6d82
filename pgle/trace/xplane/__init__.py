"""JAX profiler traces as a Trace, and back."""
