"""Hold flags against the jaxlib that is installed."""

from __future__ import annotations

from pgle.run.ask.flag_probe import probe
from pgle.xla.flags.lint import Lint, lint
from pgle.xla.flags.text import FlagList


def lint_flags(flags: FlagList, *, jaxlib: str | None = None, python: str | None = None) -> Lint:
    """What is wrong with the flags.

    Args:
        flags: as XLA reads them.
        jaxlib: a release to hold them against by the catalogue; the installed one is asked where None.
        python: the interpreter whose jaxlib is asked; default: ours.

    Raises:
        UserError: the interpreter has no jaxlib, or `jaxlib` is no version.
    """
    if jaxlib is not None:
        return lint(flags, jaxlib)
    asked = probe(flags.flags, python)
    return lint(flags, asked.jaxlib, {text: (said.status, said.message) for text, said in asked.verdicts.items()})
