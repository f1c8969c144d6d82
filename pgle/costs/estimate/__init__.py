"""What instructions take that nobody measured: XLA's measured tables, rooflines, communication."""
