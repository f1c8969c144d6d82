"""A program that is captured on CPUs: which modules it executes, what jax drops there, what is too large to execute."""
