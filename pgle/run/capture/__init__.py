"""The modules of a program, captured from a run that executes next to nothing."""
