"""How often loops run that XLA states no trip count for: start, step and bound stand in the
module.
"""

import pytest

from pgle.xla.hlo.module import Module
from pgle.xla.hlo.text import module_from_text
from pgle.xla.hlo.trips import trip_count

LOOP = """HloModule m, is_scheduled=true

%body (s: (s32[], f32[8], s32[])) -> (s32[], f32[8], s32[]) {{
  %s = (s32[], f32[8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8] get-tuple-element(%s), index=1
  %n = s32[] get-tuple-element(%s), index=2
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  ROOT %out = (s32[], f32[8], s32[]) tuple(%next, %x, %n)
}}

%test (s: (s32[], f32[8], s32[])) -> pred[] {{
  %s.1 = (s32[], f32[8], s32[]) parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %n.1 = s32[] get-tuple-element(%s.1), index=2
  ROOT %c = pred[] compare(%i.1, %n.1), direction={direction}
}}

ENTRY %main (x: f32[8]) -> (s32[], f32[8], s32[]) {{
  %x.2 = f32[8] parameter(0)
  %start = s32[] constant({start})
  %bound = s32[] constant({bound})
  %t = (s32[], f32[8], s32[]) tuple(%start, %x.2, %bound)
  ROOT %w = (s32[], f32[8], s32[]) while(%t), condition=%test, body=%body
}}
"""


def loop(start: int, direction: str, bound: int, step: int) -> str:
    return LOOP.format(start=start, direction=direction, bound=bound, step=step)


def trips(text: str, name: str = "w") -> int | None:
    module = module_from_text(text.encode(), "m.txt")
    return trip_count(module, module.instructions[name])


@pytest.mark.parametrize(
    ("start", "direction", "bound", "step", "count"),
    [
        (0, "LT", 3, 1, 3),
        (1, "LT", 3, 1, 2),  # one iteration was peeled
        (0, "LT", 7, 2, 4),  # unrolled twice
        (0, "LE", 3, 1, 4),
        (0, "NE", 6, 2, 3),
        (5, "GT", 0, -1, 5),
        (5, "GE", 0, -2, 3),
        (0, "EQ", 0, 1, 1),
        (9, "LT", 3, 1, 0),
        (0, "LT", 3, 0, None),  # never ends
        (0, "LT", 3, -1, None),
        (0, "NE", 5, 2, None),  # steps over its bound
        (0, "LT", 2**31 - 1, 2, None),  # would wrap around
    ],
)
def test_a_loop_runs_until_its_comparison_fails(
    start: int, direction: str, bound: int, step: int, count: int | None
) -> None:
    assert trips(loop(start, direction, bound, step)) == count


def test_a_stated_count_is_taken_as_it_is() -> None:
    text = loop(0, "LT", 3, 1).replace(
        "body=%body\n", 'body=%body, backend_config={"known_trip_count":{"n":"7"}}\n'
    )
    assert trips(text) == 7


COPIED = """  %t0 = (s32[], f32[8], s32[]) tuple(%start, %x.2, %bound)
  %e0 = s32[] get-tuple-element(%t0), index=0
  %k0 = s32[] copy(%e0)
  %t = (s32[], f32[8], s32[]) tuple(%k0, %x.2, %bound)
"""
FUSED = """%fused (p: s32[], q: s32[]) -> pred[] {
  %p = s32[] parameter(0)
  %q = s32[] parameter(1)
  ROOT %lt = pred[] compare(%p, %q), direction=LT
}

"""
COMPARED = "ROOT %c = pred[] compare(%i.1, %n.1), direction=LT"
WAYS = {
    "copied": (
        ("  %t = (s32[], f32[8], s32[]) tuple(%start, %x.2, %bound)\n", COPIED),
    ),
    "mirrored": ((COMPARED, "ROOT %c = pred[] compare(%n.1, %i.1), direction=GT"),),
    "converted": (
        ("  ROOT %c", "  %wide = s64[] convert(%i.1)\n  ROOT %c"),
        ("compare(%i.1", "compare(%wide"),
    ),
    "fused": (
        ("%test (", FUSED + "%test ("),
        (COMPARED, "ROOT %c = pred[] fusion(%i.1, %n.1), kind=kLoop, calls=%fused"),
    ),
    "called": (
        ("%test (", FUSED + "%test ("),
        (COMPARED, "ROOT %c = pred[] call(%i.1, %n.1), to_apply=%fused"),
    ),
    "inverted": (
        (
            COMPARED,
            "%d = pred[] compare(%i.1, %n.1), direction=GE\n  ROOT %c = pred[] not(%d)",
        ),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_stands_between_a_variable_and_its_comparison_is_followed(
    way: str,
) -> None:
    text = loop(0, "LT", 3, 1)
    for old, new in WAYS[way]:
        assert old in text
        text = text.replace(old, new)
    assert trips(text) == 3


def test_the_shorter_of_two_conditions_ends_a_loop() -> None:
    both = (
        "  %five = s32[] constant(5)\n"
        "  %c1 = pred[] compare(%i.1, %n.1), direction=LT\n"
        "  %c2 = pred[] compare(%i.1, %five), direction=LT\n"
        "  ROOT %c = pred[] and(%c1, %c2)\n"
    )
    one = "  ROOT %c = pred[] compare(%i.1, %n.1), direction=LT\n"
    assert trips(loop(0, "LT", 30, 1).replace(one, both)) == 5


@pytest.mark.parametrize(
    "changed",
    [
        ("%start = s32[] constant(0)", "%start = s32[] parameter(1)"),
        ("%bound = s32[] constant(3)", "%bound = s32[] parameter(1)"),
        ("add(%i, %step)", "multiply(%i, %step)"),
        ("%step = s32[] constant(2)", "%step = s32[] parameter(1)"),
    ],
    ids=["start", "bound", "growing", "step"],
)
def test_data_that_decides_leaves_the_length_open(changed: tuple[str, str]) -> None:
    text = loop(0, "LT", 3, 2).replace(*changed)
    assert trips(text) is None


def test_a_step_that_the_loop_keeps_is_what_it_was_before() -> None:
    assert trips(loop(0, "LT", 3, 1).replace("add(%i, %step)", "add(%i, %n)")) == 1


def test_an_inner_loop_takes_a_bound_that_the_outer_one_keeps() -> None:
    inner = (
        "  %zero = s32[] constant(0)\n"
        "  %t.i = (s32[], f32[8], s32[]) tuple(%zero, %x, %n)\n"
        "  %w.i = (s32[], f32[8], s32[]) while(%t.i), condition=%test.i, body=%body.i\n"
        "  ROOT %out"
    )
    text = loop(0, "LT", 3, 1)
    start, end = text.index("%body ("), text.index("ENTRY")
    names = (
        "body",
        "test",
        "s",
        "i",
        "x",
        "n",
        "step",
        "next",
        "out",
        "s.1",
        "i.1",
        "n.1",
        "c",
    )
    own = text[start:end]
    for name in names:
        for mark in (" ", ",", ")"):
            own = own.replace(f"%{name}{mark}", f"%{name}.i{mark}")
    outer = text.replace("  ROOT %out", inner, 1)
    assert trips(outer.replace("%body (", own + "%body (", 1), "w.i") == 3


def test_text_and_proto_hold_the_same_constants(dumps_loop: Module) -> None:
    item = dumps_loop.instructions["c"]
    assert (item.constant, item.direction) == (-4, "")


@pytest.fixture
def dumps_loop() -> Module:
    from pgle.xla.hlo.proto import module_from_proto
    from pgle.xla.protos import hlo_pb2

    scalar = hlo_pb2.ShapeProto(element_type=hlo_pb2.S16)
    literal = hlo_pb2.LiteralProto(
        shape=scalar, s16s=(-4).to_bytes(2, "little", signed=True)
    )
    constant = hlo_pb2.HloInstructionProto(
        name="c", opcode="constant", shape=scalar, literal=literal, id=1
    )
    computation = hlo_pb2.HloComputationProto(
        name="main", instructions=[constant], id=1, root_id=1
    )
    proto = hlo_pb2.HloModuleProto(
        name="m", computations=[computation], entry_computation_id=1
    )
    return module_from_proto(proto, "m.hlo.pb")
