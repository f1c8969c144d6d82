"""From a request to the signature of its library function.

`answers(Request)` makes a function of a request one that takes the fields of the request, each by
its name: with their types for mypy, with their defaults and meanings for `help`.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature
from textwrap import fill
from typing import Any, ParamSpec, TypeVar

from pgle.errors import UserError
from pgle.requests.option import Request, declared

P = ParamSpec("P")
Q = TypeVar("Q", bound=Request)
R = TypeVar("R")

WIDTH = 100  # columns of a docstring


@contextmanager
def user_errors() -> Iterator[None]:
    """Errors about files and patterns are `UserError`, as those of the command line are one line."""
    try:
        yield
    except re.error as error:
        what = f"{str(error.pattern)!r} is not a regular expression ({error})"
        raise UserError(what) from None
    except OSError as error:
        if not error.filename:
            raise
        where = os.fsdecode(error.filename)
        raise UserError(
            str(error.strerror), where=where, remedy="check the path"
        ) from None


def answers(
    request: Callable[P, Q],
) -> Callable[[Callable[[Q], R]], Callable[P, R]]:
    """Make a function of a request one of its fields."""

    def made(function: Callable[[Q], R]) -> Callable[P, R]:
        @wraps(function)
        def answered(*args: P.args, **kwargs: P.kwargs) -> R:
            with user_errors():
                return function(request(*args, **kwargs))

        describe(answered, request, function)
        return answered

    return made


def describe(
    answered: Callable[..., Any],
    request: Callable[..., Any],
    function: Callable[..., Any],
    first: tuple[Parameter, ...] = (),
    meanings: tuple[tuple[str, str], ...] = (),
) -> None:
    """Give a library function the signature of its request, and its docstring the arguments.

    Args:
        answered: the library function.
        request: the class of its request.
        function: what it makes of a request, with the docstring.
        first: parameters that stand in place of the request's positional ones.
        meanings: what those are.
    """
    assert isinstance(request, type)
    fields = {item.name: item for item in declared(request)}
    known = inspect.signature(request).parameters
    listed = [known[name] for name in fields if name in known]
    if first:
        listed = [item for item in listed if item.kind is Parameter.KEYWORD_ONLY]
    by_kind = sorted((*first, *listed), key=lambda item: item.kind)
    returned = inspect.signature(function).return_annotation
    answered.__signature__ = Signature(by_kind, return_annotation=returned)  # type: ignore[attr-defined]
    words = dict(meanings)
    for item in sorted(listed, key=lambda item: item.kind):
        option = fields[item.name].option
        words[item.name] = option.meaning or option.help
    lines = [
        fill(
            f"{name}: {text}", WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8
        )
        for name, text in words.items()
    ]
    head = inspect.cleandoc(function.__doc__ or "")
    answered.__doc__ = "\n".join([head, "", "Args:", *lines])
