"""An optimizer of many small kernels."""

from __future__ import annotations

from priced import lever_of, priced

from pgle.account.value import Opportunity, OpportunityKind


def updates(count: int, side: int, header: str = "") -> str:
    """A program that updates so many square parameters, each in a kernel of its own."""
    shape = f"f32[{side},{side}]"
    lines = []
    for number in range(count):
        lines.append(f"  p{number} = {shape} parameter({2 * number})")
        lines.append(f"  g{number} = {shape} parameter({2 * number + 1})")
        lines.append(f"  n{number} = {shape} subtract(p{number}, g{number})")
    names = ", ".join(f"n{number}" for number in range(count))
    shapes = ", ".join([shape] * count)
    lines.append(f"  ROOT all = ({shapes}) tuple({names})")
    body = "\n".join(lines)
    return f"HloModule jit_step, is_scheduled=true{header}\nENTRY main {{\n{body}\n}}\n"


def optimizer(text: str, count: int, us: float) -> Opportunity | None:
    kernels = {f"n{number}": us for number in range(count)}
    step = priced(text, kernels, gpu="h100-sxm", step_us=5000)
    return lever_of(step, OpportunityKind.OPTIMIZER)


def test_small_updates_are_done_together() -> None:
    found = optimizer(updates(200, 64), 200, 2.0)
    assert found is not None
    assert found.expected_us is not None
    assert len(found.instructions) == 200
    # 200 parameters of 16 KiB take microseconds to read and write
    assert 370 < found.expected_us < 400
    assert "optax.flatten" in found.edit
    assert "not LAMB" in found.edit


def test_a_few_updates_are_left() -> None:
    assert optimizer(updates(20, 64), 20, 2.0) is None


def test_large_updates_are_left() -> None:
    assert optimizer(updates(100, 2048), 100, 20.0) is None


def test_sharded_parameters_cannot_be_joined_without_trying() -> None:
    found = optimizer(updates(200, 64, ", num_partitions=8"), 200, 2.0)
    assert found is not None
    assert found.expected_us is None
    assert found.most_us > 370
