"""XLA_FLAGS inside the program: where it replaces the variable, what pgle had added is added again."""

import os

VARIABLE = "XLA_FLAGS"


def missing(ours, environ=os.environ):
    """Those of our flags whose names XLA_FLAGS does not mention; none where it names a file."""
    text = environ.get(VARIABLE, "").strip()
    if text and not text.startswith("-"):
        return []
    there = {word.split("=", 1)[0] for word in text.split()}
    return [flag for flag in ours if flag.split("=", 1)[0] not in there]


def restore(ours, environ=os.environ):
    """Add the missing ones in front, so that the program's own win; returns them."""
    lost = missing(ours, environ)
    if lost:
        environ[VARIABLE] = " ".join([*lost, environ.get(VARIABLE, "")]).strip()
    return lost
