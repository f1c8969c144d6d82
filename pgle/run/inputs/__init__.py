"""What a path on the command line names, and its content as one value."""
