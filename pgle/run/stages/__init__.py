"""The stages of an experiment: for real or on the simulated GPU, alone or all in order."""
