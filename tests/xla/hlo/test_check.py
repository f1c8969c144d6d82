"""Modules that no compiler makes are refused, so that whatever walks a module comes to an end."""

from __future__ import annotations

import pytest

from pgle.errors import UserError
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.text import module_from_text

HEAD = "HloModule jit_f, is_scheduled=true\n\n"
P = "(p: f32[8]) -> f32[8] {\n  %p = f32[8] parameter(0)\n"


def read(text: str) -> Module:
    return module_from_text((HEAD + text).encode(), "x.txt")


def calls(levels: int, each: str) -> str:
    """Computations that call the one before, in lines such as `each`."""
    lines = [f"%b0 {P}  ROOT %n = f32[8] negate(%p)\n}}\n"]
    lines += [
        f"{'ENTRY ' * (i == levels)}%b{i} {P}{each.format(i=i, b=i - 1)}}}\n"
        for i in range(1, levels + 1)
    ]
    return "\n".join(lines)


ONCE = "  ROOT %x.{i} = f32[8] call(%p), to_apply=%b{b}\n"
TWICE = "  %y.{i} = f32[8] call(%p), to_apply=%b{b}\n" + ONCE
LOOP = '  ROOT %w.{i} = f32[8] while(%p), body=%b{b}, backend_config={{"known_trip_count":{{"n":"1000000000"}}}}\n'


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            f"ENTRY %e {P}  ROOT %c = f32[8] fusion(%p), kind=kLoop, calls=%e\n}}\n",
            "computation e calls itself",
        ),
        (calls(200, ONCE), "more than 100 calls within calls"),
        (calls(60, TWICE), "instructions, with all computations that it calls"),
        (calls(3, LOOP), "run more than 2\\^53 times"),
        (
            f"ENTRY %e {P}  ROOT %c = f32[9999999999,9999999999] custom-call(%p)\n}}\n",
            "c holds more bytes",
        ),
        (
            f"ENTRY %e {P}  ROOT %c = {'(' * 200}f32[8]{')' * 200} custom-call(%p)\n}}\n",
            "tuples of more than 100",
        ),
    ],
)
def test_what_no_compiler_makes_is_refused(text: str, wrong: str) -> None:
    with pytest.raises(UserError, match=wrong):
        read(text)


def test_what_compilers_make_is_read() -> None:
    assert len(read(calls(50, ONCE)).computations) == 51
    assert len(read(calls(10, TWICE)).computations) == 11


def test_an_async_done_that_waits_for_itself_wraps_nothing() -> None:
    module = read(
        f"ENTRY %e {P}  %u = f32[8] async-update(%d)\n  ROOT %d = f32[8] async-done(%u)\n}}\n"
    )
    assert module.wrapped(module.instructions["d"]) is None


def test_names_are_of_their_computation() -> None:
    """XLA's parser takes one name in two computations; the entry's instruction keeps it."""
    text = (
        "HloModule m\n\n"
        "%f (x: f32[8]) -> f32[8] {\n  %x = f32[8] parameter(0)\n  ROOT %y = f32[8] negate(%x)\n}\n\n"
        "ENTRY %main (x: f32[64]) -> f32[64] {\n  %x = f32[64] parameter(0)\n  ROOT %z = f32[64] negate(%x)\n}\n"
    )
    module = module_from_text(text.encode(), "m.txt")
    assert {
        name: item.shape.dimensions for name, item in module.instructions.items()
    } == {
        "f/x": (8,),
        "y": (8,),
        "x": (64,),
        "z": (64,),
    }
    assert module.instructions["y"].operands == ("f/x",)
    assert module.instructions["z"].operands == ("x",)


@pytest.mark.parametrize(
    "line",
    [
        "%y = f32[8] bitcast()",
        "%y = f32[8] dynamic-update-slice(%p)",
        "%y = f32[8] get-tuple-element(), index=0",
        "%y = f32[8] fusion(), kind=kLoop, calls=%f",
    ],
)
def test_an_instruction_without_its_operands_is_an_error(line: str) -> None:
    fused = f"%f {P}  ROOT %n = f32[8] negate(%p)\n}}\n\n"
    text = f"{HEAD}{fused}ENTRY %main {P}  ROOT {line}\n}}\n"
    with pytest.raises(UserError, match="operands"):
        module_from_text(text.encode(), "m.txt")


@pytest.mark.parametrize("form", ["%p = {} parameter(0)", "p = {} parameter(0)"])
def test_tuples_in_tuples_have_a_depth(form: str) -> None:
    shape = "(" * 5000 + "f32[8]" + ")" * 5000
    with pytest.raises(UserError):
        read(f"ENTRY e {{\n  ROOT {form.format(shape)}\n}}\n")


def test_a_number_of_partitions_has_few_digits() -> None:
    text = "ENTRY %e (p: f32[8]) -> f32[8] {\n  ROOT %p = f32[8] parameter(0)\n}\n"
    head = f"HloModule m, is_scheduled=true, num_partitions={'9' * 5000}\n\n"
    with pytest.raises(UserError, match="its first line holds a malformed number"):
        module_from_text((head + text).encode(), "x.txt")
