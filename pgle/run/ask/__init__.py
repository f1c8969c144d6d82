"""Questions to what is installed: nsys, jaxlib."""
