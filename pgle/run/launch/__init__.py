"""The user's program: started for real or on the simulated GPU."""
