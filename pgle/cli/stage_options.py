"""Options of the commands that launch a program: profile, perf, run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

LAUNCHING: dict[str, Any] = {"context_settings": {"ignore_unknown_options": False}}


def stage_options(function: F) -> F:
    """The options that every launching command has."""
    options = (
        click.argument("words", nargs=-1, metavar="-- COMMAND..."),
        click.option("--run-dir", default="runs/default", show_default=True, type=click.Path(path_type=Path),
                     metavar="DIR", help="Where the experiment lives."),
        click.option("--capture", default="auto", show_default=True,
                     type=click.Choice(["auto", "jax", "nsys", "simulated"]),
                     help="Profiler; simulated needs no GPU. auto: jax where there is a GPU."),
        click.option("--target", default="h100", show_default=True, metavar="NAME|FILE", help="GPU to simulate."),
        click.option("--devices", default=4, show_default=True, type=click.IntRange(1), help="Devices to simulate."),
        click.option("--topology", metavar="SxHxD", help="Topology to simulate, slices x hosts x devices."),
        click.option("--flag", "flags", multiple=True, metavar="--xla_…", help="One more XLA flag; repeatable."),
        click.option("--quiet-for", default=20.0, show_default=True, metavar="SECONDS",
                     help="Simulated: stop the program when it has compiled nothing new for so long."),
        click.option("--force", is_flag=True, help="Run a stage again; its old folder is kept under another name."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function
