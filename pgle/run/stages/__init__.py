"""The stages of an experiment, on GPUs or on the simulated GPU, alone or all in order."""
