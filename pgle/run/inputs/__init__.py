"""What a path on the command line stands for, and what lies there as one value."""
