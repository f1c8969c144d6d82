"""Give library functions the signatures of their requests.

`answers(Request)` turns a function of a request into a function of the request's fields, each a
parameter with its type (for mypy), its default and its meaning (for `help`).
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
    """Turn errors about files and patterns into `UserError`, one line as on the command line."""
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
    """Decorate a function of a request, so that it takes the request's fields."""

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
    """A library function that takes a path or a command line, or a function and its arguments.

    Python's types cannot describe options after ``*args`` together with their types. So mypy checks
    options only in the first form.
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
    """Decorate a function of a request, so that it takes a step, the step's arguments, and the
    request's options.

    Args:
        request: the class of the request.
        of_step: makes a request from its class, a step, the step's arguments, and the options.
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
    """Give a library function the signature of its request, and list its arguments in its
    docstring.

    Args:
        answered: the library function, which is changed.
        request: the class of its request.
        function: the decorated function of a request, which has the docstring.
        first: parameters that replace the request's positional ones.
        meanings: (name, meaning) of these parameters.
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
