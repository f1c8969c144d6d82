"""The run directory of an experiment and its manifest."""
