"""The outside world: subprocesses, environment variables, files, run directories and clusters."""
