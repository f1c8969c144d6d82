"""Text dumps say the same as proto dumps of the same compilation."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.xla.hlo.dumps import read_module, read_modules
from pgle.xla.hlo.module import Instruction, Module
from pgle.xla.hlo.replica_groups import groups_from_text
from pgle.xla.hlo.text import module_from_text, shape_of, unescape

RUNS = ("async", "sync", "off", "collectives")


def both(dumps: Path, run: str) -> tuple[Module, Module]:
    (text,) = (dumps / run).glob("*after_optimizations.txt.xz")
    (proto,) = (dumps / run).glob("*after_optimizations.hlo.pb.xz")
    return read_module(text), read_module(proto)


def comparable(module: Module) -> dict[str, Instruction]:
    """Instructions by name; get-tuple-elements as PRODUCER#INDEX, as newer text has it, and JSON
    without key order.
    """

    def element(name: str) -> str:
        item = module.instructions[name]
        is_element = item.opcode == "get-tuple-element"
        return f"{element(item.operands[0])}#{item.tuple_index}" if is_element else name

    return {
        item.name: replace(
            item,
            operands=tuple(map(element, item.operands)),
            control_predecessors=tuple(map(element, item.control_predecessors)),
            backend_config=json.dumps(json.loads(item.backend_config), sort_keys=True)
            if item.backend_config
            else "",
        )
        for item in module.walk()
        if item.opcode != "get-tuple-element"
    }


@pytest.mark.parametrize("run", RUNS)
def test_text_and_proto_have_equal_instructions(dumps: Path, run: str) -> None:
    text, proto = both(dumps, run)
    assert comparable(text) == comparable(proto)


@pytest.mark.parametrize("run", RUNS)
def test_text_and_proto_have_equal_computations_in_equal_order(
    dumps: Path, run: str
) -> None:
    def outline(module: Module) -> dict[str, object]:
        return {
            item.name: (item.root, item.is_fusion, [
                inner.name for inner in item.instructions if inner.opcode != "get-tuple-element"
            ])
            for item in module.computations.values()
        }  # fmt: skip

    text, proto = both(dumps, run)
    assert outline(text) == outline(proto)


def test_text_and_proto_have_equal_headers(dumps: Path) -> None:
    text, proto = (
        replace(module, computations={}, source="") for module in both(dumps, "async")
    )
    if not text.shards:  # jaxlib 0.12 prints none
        proto = replace(proto, shards=())
    assert text == proto


def test_a_header_says_which_parameters_results_take_the_memory_of() -> None:
    donated = b"input_output_alias={ {0}: (3, {}, may-alias), {1, 2}: (0, {1}) }"
    header = b"HloModule m, is_scheduled=true, " + donated
    text = SMALL.replace(b"HloModule m, is_scheduled=true", header)
    assert module_from_text(text, "m.txt").donated == {0, 3}
    assert module_from_text(SMALL, "m.txt").donated == set()


def test_a_directory_with_both_forms_gives_the_module_once(dumps: Path) -> None:
    (module,) = read_modules(dumps / "async")
    assert ".hlo.pb" in module.source


SMALL = b"""HloModule m, is_scheduled=true, replica_count=2, frontend_attributes={fingerprint_before_lhs="00ff"}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %n = f32[4]{0} negate(%p)
}

ENTRY %main (a: f32[4], b: (f32[2], s32[])) -> f32[4] {
  %a = f32[4]{0:S(5)} parameter(0)
  %b = (f32[2]{0}, /*index=1*/s32[]) parameter(1)
  %c = f32[2]{0} negate(%b#0), control-predecessors={%a}, metadata={op_name="x[\\'y\\'], calls=%no"}
  ROOT %f = f32[4]{0} fusion(f32[4]{0} %a), kind=kLoop, calls=%fused, backend_config={"a":{"b":[1]}}
}
"""


def test_elements_without_their_own_line_become_instructions() -> None:
    module = module_from_text(SMALL, "m")
    element = module.instructions["b#0"]
    assert (
        element.opcode,
        element.operands,
        element.tuple_index,
        str(element.shape),
    ) == (
        "get-tuple-element",
        ("b",),
        0,
        "f32[2]",
    )


def test_attributes_are_not_taken_from_names() -> None:
    module = module_from_text(SMALL, "m")
    item = module.instructions["c"]
    assert (item.called, item.op_name, item.control_predecessors) == (
        (),
        "x['y'], calls=%no",
        ("a",),
    )


@pytest.mark.parametrize("rest", ["", ", calls=%fused, kind=kLoop"])
def test_what_an_instruction_states_of_its_latency_reads(rest: str) -> None:
    stated = f'fusion(%a){rest}, frontend_attributes={{a="b",latency_metadata="7000"}}'.encode()
    text = SMALL.replace(b"fusion(f32[4]{0} %a), kind=kLoop, calls=%fused", stated)
    assert module_from_text(text, "m").instructions["f"].latency_ns == 7000


def test_how_many_devices_is_not_taken_from_attributes() -> None:
    text = SMALL.replace(
        b'="00ff"}', b'="00ff",of="num_partitions=3, replica_count=4"}'
    ).replace(b"replica_count=2", b"replica_count=2, num_partitions=8")
    module = module_from_text(text, "m")
    assert (module.num_replicas, module.num_partitions) == (2, 8)


def test_a_small_module_reads() -> None:
    module = module_from_text(SMALL, "m", program_id=3)
    fusion = module.instructions["f"]
    assert (fusion.operands, fusion.called, fusion.fusion_kind) == (
        ("a",),
        ("fused",),
        "kLoop",
    )
    assert fusion.backend_config == '{"a":{"b":[1]}}'
    assert module.computations["fused"].is_fusion
    assert (
        module.entry,
        module.fingerprint,
        module.num_replicas,
        module.program_id,
    ) == (
        "main",
        "00ff",
        2,
        3,
    )
    assert module.instructions["a"].shape.memory_space == 5


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{}", ()),
        ("{{0,2},{1,3}}", ((0, 2), (1, 3))),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("mesh['x'=2,'y'=2] {'x'}", ((0, 2), (1, 3))),
        ("mesh[x=2,y=2] {y}", ((0, 1), (2, 3))),
        ("mesh['x'=8] {'x':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['x'=2,'y'=2], device_ids=(0,2,1,3) {'x'}", ((0, 1), (2, 3))),
        ("mesh['x'=2,'y'=2], device_ids=([2,2]T(1,0)) {'x'}", ((0, 1), (2, 3))),
        ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
    ],
)
def test_device_groups(text: str, groups: tuple[tuple[int, ...], ...]) -> None:
    assert groups_from_text(text) == groups


@pytest.mark.parametrize(
    ("text", "shown", "size"),
    [
        ("bf16[8,128]{1,0:T(8,128)(2,1)S(5)}", "bf16[8,128]", 2048),
        ("f32[]", "f32[]", 4),
        ("s4[3]{0:E(4)}", "s4[3]", 2),
        (
            "((f32[2]{0}), (token[], /*index=1*/u8[<=4]{0}))",
            "((f32[2]), (token[], u8[4]))",
            12,
        ),
        ("()", "()", 0),
    ],
)
def test_shapes(text: str, shown: str, size: int) -> None:
    shape = shape_of(text)
    assert (str(shape), shape.size_bytes) == (shown, size)


def test_octal_bytes_are_utf8() -> None:
    assert unescape(r"\303\251t\303\251 \"x\"") == 'été "x"'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"hello\n", "not HLO text"),
        (b"\x0a\x05\x00\x00\x00", "name it .hlo.pb"),
        (SMALL[:-2], "cut short"),
        (SMALL[:200], "cut short"),
        (SMALL.replace(b"%b#0", b"%b#7"), "not an element"),
        (SMALL.replace(b"f32[2]{0} negate", b"f32?? negate"), "not an HLO shape"),
        (
            SMALL.replace(b"f32[2]{0} negate", b"f32[two]{0} negate"),
            "not HLO text: '%c = f32.two.",
        ),
    ],
)
def test_bad_text_is_a_user_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "module_0001.m.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_module(path)
