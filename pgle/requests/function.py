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
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from pgle.errors import UserError
from pgle.requests.option import Request, declared

P = ParamSpec("P")
Q = TypeVar("Q", bound=Request)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

WIDTH = 100  # columns of a docstring


@contextmanager
def user_errors() -> Iterator[None]:
    """Errors about files and patterns are `UserError`: one line, as on the command line."""
    try:
        yield
    except re.error as error:
        raise UserError(
            f"{str(error.pattern)!r} is not a regular expression ({error})"
        ) from None
    except OSError as error:
        if not error.filename:
            raise
        raise UserError(
            str(error.strerror),
            where=os.fsdecode(error.filename),
            remedy="check the path",
        ) from None


def answers(
    request: Callable[P, Q],
) -> Callable[[Callable[[Q], R]], Callable[P, R]]:
    """Make a function of a request one of its fields."""

    def made(function: Callable[[Q], R]) -> Callable[P, R]:
        @wraps(function)
        def answered(*args: P.args, **kwargs: P.kwargs) -> R:
            with user_errors():
                asked = request(*args, **kwargs)
                asked.check_bare()
                return function(asked)

        describe(answered, request, function)
        return answered

    return made


class OfSteps(Protocol[P, R_co]):
    """A library function of a path or a command line; or of a function with what that takes.

    A type of Python cannot hold both the words after ``*args`` and their types, so that mypy checks
    the options of the first form.
    """

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> R_co: ...
    @overload
    def __call__(
        self, step: Callable[..., Any], *args: Any, **options: Any
    ) -> R_co: ...


STEP = Parameter(
    "step",
    Parameter.POSITIONAL_OR_KEYWORD,
    annotation="Callable[..., Any] | StrPath | Sequence[str]",
)
ARGS = Parameter("args", Parameter.VAR_POSITIONAL, annotation="Any")
MEANINGS = (
    (
        "step",
        "a jitted function; or a module's file, a folder of dumps, a run directory; or the "
        "words of a command.",
    ),
    (
        "args",
        "what the function takes: arrays, or `jax.ShapeDtypeStruct` with shardings on an "
        "`AbstractMesh`.",
    ),
)


def answers_on_steps(
    request: Callable[P, Q], of_step: Callable[..., Q]
) -> Callable[[Callable[[Q], R]], OfSteps[P, R]]:
    """Make a function of a request one of a step, what that takes, and the request's options.

    `of_step` makes the request of its class, a step, the arguments of that, and the options.
    """

    def made(function: Callable[[Q], R]) -> OfSteps[P, R]:
        @wraps(function)
        def answered(step: Any, *args: Any, **options: Any) -> R:
            with user_errors():
                asked = of_step(request, step, args, options)
                asked.check_bare()
                return function(asked)

        describe(answered, request, function, (STEP, ARGS), MEANINGS)
        return cast("OfSteps[P, R]", answered)

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
        first: parameters in place of the request's positional ones.
        meanings: what those are.
    """
    assert isinstance(request, type)
    fields = {item.parameter: item for item in declared(request)}
    known = inspect.signature(request).parameters
    listed = [known[name] for name in fields if name in known]
    if first:
        listed = [item for item in listed if item.kind is Parameter.KEYWORD_ONLY]
    by_kind = sorted((*first, *listed), key=lambda item: item.kind)
    returned = inspect.signature(function).return_annotation
    signature = Signature(by_kind, return_annotation=returned)
    answered.__signature__ = signature  # type: ignore[attr-defined]
    words = dict(meanings)
    for item in sorted(listed, key=lambda item: item.kind):
        option = fields[item.name].option
        words[item.name] = option.meaning or option.help
    lines = [
        fill(f"    {name}: {text}", WIDTH, subsequent_indent=" " * 8)
        for name, text in words.items()
    ]
    head = inspect.cleandoc(function.__doc__ or "")
    answered.__doc__ = "\n".join([head, "", "Args:", *lines])
