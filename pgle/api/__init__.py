"""The library: the answers of the commands, as values. `import pgle` has all of it; docs/library.md
explains it.

Each command calls its function here. The function returns an `Answer`, and prints only if it is
interrupted. It raises `UserError` for mistakes that the user can fix, such as a bad input or an
existing output file. Each file holds the functions of one kind of request, so that a command does
not load the others.
"""
