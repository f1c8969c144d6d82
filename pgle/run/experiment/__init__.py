"""One experiment: its run directory and its stages."""
