"""What holds for all levers, on modules that were not made for them."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import combinations
from operator import add
from pathlib import Path

import pytest
from random_modules import RandomModule

from pgle.account.levers import find_levers
from pgle.account.levers.flow import Flow
from pgle.account.levers.places import taken_us
from pgle.account.step_costs import StepCosts
from pgle.account.value import OTHER_WAY, Basis, Opportunity, OpportunityKind
from pgle.worth import LEAST_GAIN
from pgle.xla.hlo.dumps import read_modules
from pgle.xla.hlo.module import Module
from pgle.xla.targets import find_hardware

TESTDATA = Path(__file__).parents[2] / "testdata"
DUMPS = sorted(TESTDATA.glob("hlo/jax-*/*/*after_optimizations.hlo.pb.xz"))
US = 100.0  # of each kernel


def alike(module: Module, gpu: str) -> StepCosts:
    """A step in which all kernels take as long, and half of the memory is free."""
    us = dict.fromkeys(Flow(module).kernel.values(), US)
    return StepCosts(
        module=module,
        hardware=find_hardware(gpu),
        step_us=US * len(us),
        us=us,
        count=dict.fromkeys(us, 1.0),
        basis=Basis.ESTIMATED,
        peak_bytes=1 << 34,
        limit_bytes=1 << 35,
        exposed_us=us,
        exposed_copies_us=US,
    )


def check(step: StepCosts, found: tuple[Opportunity, ...]) -> None:
    for item in found:
        expected = item.least_us if item.expected_us is None else item.expected_us
        assert item.least_us <= expected <= item.most_us
        assert item.most_us <= US * len(item.instructions)
        is_worth = item.most_us >= LEAST_GAIN * step.step_us
        assert is_worth or item.kind is OpportunityKind.KEEP_LESS
    for one, other in combinations(found, 2):
        if OTHER_WAY.get(one.kind) is other.kind:
            continue
        assert not one.instructions & other.instructions


@pytest.mark.parametrize("gpu", ["a100-40gb", "h100-sxm", "b200", "mi300x"])
@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.parent.name)
def test_no_lever_saves_more_than_its_instructions_take(path: Path, gpu: str) -> None:
    for module in read_modules(path):
        step = alike(module, gpu)
        check(step, find_levers(step))


@pytest.mark.parametrize("seed", range(30))
def test_the_same_holds_for_random_modules(seed: int) -> None:
    step = alike(RandomModule(seed).module, "h100-sxm")
    check(step, find_levers(step))


def test_what_instructions_take_together_has_the_same_digits_in_any_order() -> None:
    step = alike(read_modules(DUMPS[0])[0], "h100-sxm")
    names = sorted(step.us)
    us = {name: 10.0 ** (number % 17) / 3 for number, name in enumerate(names)}
    orders = (names, names[::-1], names[1::2] + names[::2])
    totals = {taken_us(replace(step, us=us), order) for order in orders}
    assert len(totals) == 1
    # Python's own sum rounds once from 3.12 on
    one_by_one = {reduce(add, (us[name] for name in order)) for order in orders}
    assert len(one_by_one) > 1
