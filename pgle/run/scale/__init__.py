"""`pgle scale`: a program captured, compiled and priced at each size."""
