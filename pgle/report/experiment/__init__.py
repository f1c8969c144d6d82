"""An experiment: where to begin, whether the machine is ready, its stages, all of them, and what a log proves."""
