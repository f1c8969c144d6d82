"""Flags: XLA_FLAGS as values, the catalogue, lint, presets, modes."""
