"""Compiling for GPUs that are not there."""
