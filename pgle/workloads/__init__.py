"""Programs to profile: real on GPUs, runnable on virtual CPU devices."""
