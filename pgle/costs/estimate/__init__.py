"""Estimates of missing costs: XLA's measured tables, rooflines, models of communication."""
