"""Estimates of costs that nobody measured: XLA's measured tables, rooflines, models of
communication.
"""
