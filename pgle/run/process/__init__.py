"""Child processes: started, fed, ended; their flags, environment, compiler, memory and ranks."""
