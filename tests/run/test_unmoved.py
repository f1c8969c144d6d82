"""Flags without which a jaxlib makes the same schedule, with a compiler that is pretended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pgle.errors import UserError
from pgle.run.second_compilation import fp8_choice_warning
from pgle.run.unmoved import unmoved_warnings


class Pretended:
    """A session in which the schedule is the text of the flags that count."""

    def __init__(self, flags: Sequence[str], counting: Sequence[str], folder: Path):
        self.base = SimpleNamespace(flags=tuple(flags), dump_dir=folder)
        self._counting = counting
        self.compiled = 0

    def schedule(self, _name: str, flags: Sequence[str]) -> Any:
        self.compiled += 1
        if not flags:
            raise UserError("does not compile")
        made = tuple(flag for flag in flags if flag in self._counting)
        return SimpleNamespace(
            jaxlib="0.10.2", scheduled=SimpleNamespace(computations=made)
        )


def warned(given: Sequence[str], counting: Sequence[str], folder: Path) -> list[str]:
    session: Any = Pretended(("--xla_base=1", *given), counting, folder)
    made = session.schedule("all", session.base.flags)
    return unmoved_warnings(session, given, made)


@pytest.mark.parametrize(
    ("counting", "named"),
    [
        ((), "--xla_a, --xla_b change neither this module nor its schedule"),
        (("--xla_a=1",), "--xla_b changes neither this module nor its schedule"),
        (("--xla_b=2",), "--xla_a changes neither this module nor its schedule"),
        (("--xla_a=1", "--xla_b=2"), None),
    ],
)
def test_flags_that_change_nothing_are_named_in_one_line(
    counting: tuple[str, ...], named: str | None, tmp_path: Path
) -> None:
    found = warned(("--xla_a=1", "--xla_b=2"), counting, tmp_path)
    assert [line.partition(":")[0] for line in found] == ([named] if named else [])


def test_of_many_flags_all_together_are_tried(tmp_path: Path) -> None:
    given = [f"--xla_{number}=1" for number in range(9)]
    assert warned(given, (), tmp_path)
    assert not warned(given, given[:1], tmp_path)


@pytest.mark.parametrize(
    "flag",
    [
        "--xla_gpu_enable_latency_hiding_scheduler=true",
        "--xla_dump_hlo_as_text",
        "--xla_gpu_enable_command_buffer=",
    ],
)
def test_flags_that_pgle_sets_itself_are_not_tried(flag: str, tmp_path: Path) -> None:
    assert not warned((flag,), (), tmp_path)


def test_a_program_that_needs_its_flags_says_nothing(tmp_path: Path) -> None:
    session: Any = Pretended(("--xla_a=1",), (), tmp_path)
    made = session.schedule("all", session.base.flags)
    assert unmoved_warnings(session, ("--xla_a=1",), made) == []


def product(dtype: str) -> Any:
    """A schedule with one matrix product of this type, of an fp8 array that is gathered."""
    one = SimpleNamespace(shape=SimpleNamespace(dtype=dtype))
    gathered = SimpleNamespace(
        opcode="all-gather", shape=SimpleNamespace(dtype="f8e4m3fn")
    )
    dot = SimpleNamespace(
        opcode="dot", operands=("a", "b"), shape=SimpleNamespace(dtype="bf16")
    )
    module = SimpleNamespace(
        walk=lambda: iter((gathered, dot)), instructions={"a": one, "b": one}
    )
    return SimpleNamespace(scheduled=module)


@pytest.mark.parametrize(("other", "warns"), [("f8e4m3fn", True), ("bf16", False)])
def test_products_that_only_other_kernels_keep_in_fp8_are_said(
    other: str, warns: bool
) -> None:
    session: Any = SimpleNamespace(
        base=SimpleNamespace(flags=()),
        with_other_kernels=lambda name, flags: flags,
        schedule=lambda name, flags: product(other),
        predicted=lambda made: SimpleNamespace(step_us=1000.0),
    )
    line = fp8_choice_warning(session, product("bf16"))
    assert line.startswith("1 product of fp8 arrays with") is warns
