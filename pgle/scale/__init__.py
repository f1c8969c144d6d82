"""One program at many sizes: the trials, their rows, and where the program stops to scale. Pure."""
