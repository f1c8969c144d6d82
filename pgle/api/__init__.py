"""The library: what the commands answer, as values. `import pgle` has all of it; docs/library.md
explains it.

A command answers by its function here, which returns an `Answer`, and prints nothing unless it is
interrupted. Each raises `UserError` for what the user can mend: a bad input, an output that exists.
A file holds the functions of one kind of request, so that a command loads no other requests.
"""
