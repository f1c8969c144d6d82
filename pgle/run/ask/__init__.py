"""Questions to installed programs: nsys, jaxlib."""
