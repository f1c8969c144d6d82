"""Edits of the program that would shorten a step, read from its scheduled HLO and its costs."""
