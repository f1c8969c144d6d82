"""Child processes: started, fed, ended; their environment; work on several at once."""
