"""Find where the time of a measured step goes and what could be saved, from traces and HLO, without
a compiler.
"""
