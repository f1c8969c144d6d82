"""Every text that XLA's own parser reads is read, as XLA reads it; XLA's parser is the referee."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from pgle.errors import UserError
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.proto import module_from_bytes
from pgle.xla.hlo.text import module_from_text

# ruff: noqa: E501

MODULE = r"""HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[8,4]{1,0}, s32[])->(f32[8,4]{1,0}, f32[4,8]{0,1})}, num_partitions=4

%fused (p: f32[8,4]) -> f32[8,4] {
  %p = f32[8,4]{1,0} parameter(0)
  ROOT %n = f32[8,4]{1,0} negate(f32[8,4]{1,0} %p), metadata={op_name="jit(f)/neg \"a\", {b" source_file="/src/a b.py" source_line=3}
}

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(f32[] %a, f32[] %b)
}

%body (s: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %s = (s32[], f32[8,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element((s32[], f32[8,4]{1,0}) %s), index=0
  %one = s32[] constant(1)
  %j = s32[] add(s32[] %i, s32[] %one)
  %x = f32[8,4]{1,0} get-tuple-element((s32[], f32[8,4]{1,0}) %s), index=1
  %r = f32[8,4]{1,0} all-reduce(f32[8,4]{1,0} %x), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=%sum
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(s32[] %j, f32[8,4]{1,0} %r)
}

%test (u: (s32[], f32[8,4])) -> pred[] {
  %u = (s32[], f32[8,4]{1,0}) parameter(0)
  %k = s32[] get-tuple-element((s32[], f32[8,4]{1,0}) %u), index=0
  %bound = s32[] constant(-3)
  ROOT %less = pred[] compare(s32[] %k, s32[] %bound), direction=LT
}

ENTRY %main (v: f32[8,4], w: s32[]) -> (f32[8,4], f32[4,8]) {
  %v = f32[8,4]{1,0} parameter(0), sharding={replicated}
  %w = s32[] parameter(1)
  %f = f32[8,4]{1,0} fusion(f32[8,4]{1,0} %v), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/é"}
  %c = f32[2,2]{1,0} constant({ { 1, 2 }, { 3, 4 } })
  %call = f32[8,4]{1,0} custom-call(f32[8,4]{1,0} %f, f32[2,2]{1,0} %c), custom_call_target="a\"b", api_version=API_VERSION_TYPED_FFI, metadata={op_name="q"}, backend_config={"a":{"b":"}\","},"c":[1,-2.5e-3]}
  %init = (s32[], f32[8,4]{1,0}) tuple(s32[] %w, f32[8,4]{1,0} %call)
  %loop = (s32[], f32[8,4]{1,0}) while((s32[], f32[8,4]{1,0}) %init), condition=%test, body=%body
  %out = f32[8,4]{1,0} get-tuple-element((s32[], f32[8,4]{1,0}) %loop), index=1
  %g = f32[8,4]{1,0} all-to-all(f32[8,4]{1,0} %out), channel_id=2, replica_groups=[2,2]<=[2,2]T(1,0), dimensions={0}, control-predecessors={%f, %call}
  %tr = f32[4,8]{0,1} transpose(f32[8,4]{1,0} %g), dimensions={1,0}
  ROOT %res = (f32[8,4]{1,0}, f32[4,8]{0,1}) tuple(f32[8,4]{1,0} %out, f32[4,8]{0,1} %tr)
}
"""

_STRING = re.compile(r'("(?:[^"\\]|\\.)*")')
_RAW = re.compile(r'("(?:[^"\\]|\\.)*"|backend_config=\{.*\})')


def outside_strings(change: Callable[[str], str]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        parts = _RAW.split(text)
        return "".join(
            part if at % 2 else change(part) for at, part in enumerate(parts)
        )

    return changed


def without_result_shapes(text: str) -> str:
    shape = r"= \(?[^=]*?\)? (add|negate|tuple|get-tuple-element|compare)\("
    return re.sub(shape, r"= \1(", text)


def metadata_first(text: str) -> str:
    return re.sub(
        r"\)(, kind=kLoop, calls=%fused)(, metadata=\{[^}]*\})", r")\2\1", text
    )


def config_first(text: str) -> str:
    return re.sub(
        r"\)(, custom.*?)(, backend_config=\{.*\})$", r")\2\1", text, flags=re.MULTILINE
    )


def entry_first(text: str) -> str:
    head, entry = text.split("ENTRY")
    return (
        head.replace("%body (", "%body(").replace("%sum (", "%sum(") + "ENTRY" + entry
    )


FORMS: dict[str, Callable[[str], str]] = {
    "as printed": str,
    "blanks at ends": lambda text: text.replace("\n", " \t \n"),
    "indented": lambda text: text.replace("\n", "\n    "),
    "not indented": lambda text: text.replace("\n  ", "\n"),
    "windows": lambda text: text.replace("\n", "\r\n"),
    "comment first": lambda text: "// made by hand\n/* and\n more */\n" + text,
    "comment last": lambda text: text + "// the end",
    "comments behind": lambda text: text.replace("\n  %", " // a ) } comment\n  %"),
    "comments between": outside_strings(lambda text: text.replace(", ", ", /* x){ */ ")),
    "numbered elements": lambda text: text.replace("(s32[], f32[8,4]{1,0})", "(s32[], /*index=1*/f32[8,4]{1,0})"),
    "no percent signs": outside_strings(lambda text: text.replace("%", "")),
    "no operand shapes": lambda text: re.sub(r"(?<=[(, ])[a-z]+\d*\[[\d,]*\](?:\{[\d,]*\})? %", "%", text),
    "no layouts": outside_strings(lambda text: re.sub(r"(\[[\d,]*\])\{[\d,]*\}", r"\1", text)),
    "no result shapes": without_result_shapes,
    "no signatures": lambda text: re.sub(r"^((?:ENTRY )?%\w+) \(.*\{$", r"\1 {", text, flags=re.MULTILINE),
    "no entry": lambda text: text.replace("ENTRY ", ""),
    "one line": outside_strings(lambda text: text.replace("\n", " ")),
    "a token a line": outside_strings(lambda text: re.sub(r"([(){},=])(?![{>])", r"\1\n", text).replace("<\n=", "<=")),
    "blanks around": outside_strings(lambda text: re.sub(r"([(),])", r" \1 ", text)),
    "literal on lines": lambda text: text.replace("{ 1, 2 },", "{ 1,\n 2 },\n\n"),
    "attributes on lines": outside_strings(lambda text: text.replace(", ", ",\n    ")),
    "commas first": outside_strings(lambda text: text.replace(", channel_id", "\n  , channel_id")),
    "metadata first": metadata_first,
    "configuration first": config_first,
    "no blanks": outside_strings(lambda text: text.replace(", ", ",").replace(" = ", "=")),
    "escaped": lambda text: text.replace('"q"', r'"q\303\251\n\t\x41\'\\"'),
    "raw and escaped": lambda text: text.replace('"q"', '"é→\\"\\\\"'),
    "single quotes": lambda text: text.replace('"q"', "'q'"),
    "thread": lambda text: text.replace("\n}\n\n%sum", '\n}, execution_thread="main"\n\n%sum'),
    "nested": lambda text: text.replace("%one = s32[] constant(1)\n", "").replace("s32[] %one", "s32[] constant(1)"),
    "inline": lambda text: text.replace("calls=%fused", "calls={ %q = f32[8,4]{1,0} parameter(0) ROOT %z = f32[8,4]{1,0} negate(%q) }"),
    "one name twice": lambda text: text.replace("%p", "%v").replace("(p:", "(v:"),
    "not last root": lambda text: text.replace("  ROOT %res", "  %extra = s32[] negate(s32[] %w)\n  ROOT %res"),
    "mesh": lambda text: text.replace("[2,2]<=[2,2]T(1,0)", "mesh['x'=2,'y'=2] {'x'}"),
}  # fmt: skip


def parsed_by_xla(text: str) -> Module:
    bindings: Any = importlib.import_module("jaxlib._hlo")
    parsed = bindings.hlo_module_from_text(text)
    return module_from_bytes(parsed.as_serialized_hlo_module_proto(), "xla.hlo.pb")


def facts(module: Module) -> list[tuple[object, ...]]:
    """What both readers say of a module, without names: XLA's parser makes names unique in its own
    way.
    """
    place = {
        item.name: (number, index)
        for number, one in enumerate(
            sorted(module.computations.values(), key=order(module))
        )
        for index, item in enumerate(one.instructions)
    }
    rows = [
        (
            place[item.name],
            item.opcode,
            str(item.shape),
            tuple(place[name] for name in item.operands),
            tuple(sorted(place[name] for name in item.control_predecessors)),
            tuple(
                sorted(place[module.computations[name].root] for name in item.called)
            ),
            item.op_name,
            item.channel_id,
            item.replica_groups,
            item.custom_call_target,
            item.fusion_kind,
            re.sub(r"\s", "", item.backend_config),
            item.tuple_index,
            item.parameter_number,
            item.constant,
            item.direction,
        )
        for item in module.walk()
    ]
    return sorted(rows, key=lambda row: row[0])


def order(module: Module) -> Callable[[Any], tuple[Any, ...]]:
    """Computations by what they hold, so that names do not matter."""

    def key(computation: Any) -> tuple[Any, ...]:
        is_entry = computation.name == module.entry
        return is_entry, [
            (item.opcode, str(item.shape)) for item in computation.instructions
        ]

    return key


@pytest.mark.parametrize("form", FORMS)
def test_a_text_of_any_form_is_read_as_xla_reads_it(form: str) -> None:
    text = FORMS[form](MODULE)
    assert form == "as printed" or text != MODULE
    assert facts(module_from_text(text.encode(), "m.txt")) == facts(parsed_by_xla(text))


@pytest.mark.parametrize(
    "window",
    [
        "{size=1x3 stride=1x2 pad=0_0x0_1}",
        "{size=1x3 pad=0_0x1_1}",
        "{ size=1x1 }",
        "{stride=1x3 size=2x3}",
    ],
)
def test_windows_are_read_as_xla_reads_them(window: str) -> None:
    result = {"{size=1x3 stride=1x2 pad=0_0x0_1}": "8,4", "{ size=1x1 }": "8,8"}
    shape = result.get(window, "8,8" if "pad" in window else "7,2")
    text = (
        "HloModule m\n\n"
        "%most (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n"
        "  %b = f32[] parameter(1)\n  ROOT %m = f32[] maximum(%a, %b)\n}\n\n"
        f"ENTRY %main (x: f32[8,8]) -> f32[{shape}] {{\n  %x = f32[8,8] parameter(0)\n"
        "  %low = f32[] constant(0)\n"
        f"  ROOT %w = f32[{shape}] reduce-window(%x, %low), window={window}, to_apply=%most\n}}\n"
    )
    read = module_from_text(text.encode(), "m.txt")
    (ours,) = [item for item in read.walk() if item.opcode == "reduce-window"]
    (theirs,) = [
        item for item in parsed_by_xla(text).walk() if item.opcode == "reduce-window"
    ]
    assert ours.windows == theirs.windows
    assert ours.windows


def test_a_module_without_header_is_named_by_its_entry() -> None:
    """Nothing says that it is scheduled, so XLA's order is its own."""
    text = FORMS["no signatures"](MODULE).replace("%", "").partition("\n")[2]
    ours, theirs = module_from_text(text.encode(), "m.txt"), parsed_by_xla(text)
    assert ours.name == theirs.name == "module_main"
    assert {item.name: str(item.shape) for item in ours.walk()} == {
        item.name: str(item.shape) for item in theirs.walk()
    }


@pytest.mark.parametrize("seed", range(80))
def test_forms_together_are_read_as_xla_reads_them(seed: int) -> None:
    chosen = random.Random(seed).sample(sorted(FORMS), 4)
    text = MODULE
    for form in chosen:
        text = FORMS[form](text)
    try:
        expected = parsed_by_xla(text)
    except Exception:
        pytest.skip(f"XLA does not read {chosen}")
    assert facts(module_from_text(text.encode(), "m.txt")) == facts(expected)


@pytest.mark.parametrize(
    "text",
    [
        MODULE.replace("%w = s32[] parameter(1)", "%v = s32[] parameter(1)"),
        MODULE.replace("negate(f32[8,4]{1,0} %p)", "negate(f32[8,4]{1,0} %p"),
        MODULE.replace("ROOT %n = ", "ROOT %n "),
        MODULE + "/* never closed",
    ],
    ids=["twice", "open", "no equals sign", "open comment"],
)
def test_a_text_that_xla_refuses_is_an_error(text: str) -> None:
    with pytest.raises(Exception, match="parse"):
        parsed_by_xla(text)
    with pytest.raises(UserError):
        module_from_text(text.encode(), "m.txt")
