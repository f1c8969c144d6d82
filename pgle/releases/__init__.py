"""What two releases of jax make of one program: exact facts of both, and how they differ."""
