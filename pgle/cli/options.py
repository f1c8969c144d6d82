"""Options that several commands share, each one decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(function: F) -> F:
    """``--json``: one JSON object on stdout instead of a table; the parameter is `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")(function)


def force_option(function: F) -> F:
    """``--force``: overwrite an existing output file."""
    return click.option("--force", is_flag=True, help="Overwrite output files that exist.")(function)
