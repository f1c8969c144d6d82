"""Estimates that fill the gaps of a profile are no coverage."""

from pgle.costs.profile.coverage import cover
from pgle.costs.profile.value import Cost, Origin, Profile
from pgle.xla.hlo.module import Computation, Instruction, Module, Shape
from pgle.xla.log.verdict import Bounds


def test_a_profile_of_which_most_is_estimated_does_not_cover_its_module() -> None:
    items = tuple(
        Instruction(name, "fusion", Shape("f32", (8,)), "main")
        for name in ("first", "second")
    )
    module = Module(
        "jit_step",
        1,
        "",
        "main",
        {"main": Computation("main", items, "second")},
        is_scheduled=True,
    )
    first = Cost("first", 15.0, opcode="fusion", shape="f32[8]", origin=Origin.MEASURED)
    second = Cost(
        "second", 85.0, opcode="fusion", shape="f32[8]", origin=Origin.ESTIMATED
    )
    bounds = Bounds()
    filled = cover(Profile((first, second)), [module])
    assert (filled.main[0].time.value, filled.main[0].measured.value) == (1.0, 0.15)
    assert not filled.is_ok(bounds)
    measured = second._replace(origin=Origin.MEASURED)
    assert cover(Profile((first, measured)), [module]).is_ok(bounds)
