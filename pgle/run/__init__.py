"""The outside world: subprocesses, environment, files, run directories, clusters."""
