"""Compare how two releases of jax compile one program: exact facts of both, and how they differ."""
