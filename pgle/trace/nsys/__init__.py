"""Nsight Systems exports as a Trace."""
