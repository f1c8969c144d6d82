"""Copies from and to the host that nothing hides."""

from __future__ import annotations

from dataclasses import replace

from priced import priced

from pgle.account.levers import find_levers
from pgle.account.value import Opportunity, OpportunityKind, StepPart

OFFLOAD = """HloModule jit_step, is_scheduled=true
ENTRY main {
  m = f32[1024,65536]{1,0:S(5)} parameter(0)
  start = (f32[1024,65536], f32[1024,65536]{1,0:S(5)}, u32[]) copy-start(m)
  done = f32[1024,65536] copy-done(start)
  new = f32[1024,65536] negate(done)
  back = (f32[1024,65536]{1,0:S(5)}, f32[1024,65536], u32[]) copy-start(new)
  ROOT kept = f32[1024,65536]{1,0:S(5)} copy-done(back)
}
"""
GIB = 1 << 30
EXPOSED = {"start": 4000.0, "back": 3000.0}


def copies(peak_bytes: int | None, exposed_us: float = 7000.0) -> Opportunity:
    step = priced(OFFLOAD, {"new": 200.0}, step_us=20_000, peak_bytes=peak_bytes)
    step = replace(
        step,
        exposed_us=EXPOSED,
        exposed_copies_us=exposed_us,
        limit_bytes=10 * GIB,
    )
    levers = find_levers(step)
    return next(item for item in levers if item.kind is OpportunityKind.COPIES)


def test_what_fits_stays_in_device_memory() -> None:
    found = copies(peak_bytes=9 * GIB)
    assert found.expected_us == 7000
    assert found.part is StepPart.COPIES
    assert found.where[0].instruction == "start"


def test_what_does_not_fit_has_only_a_bound() -> None:
    """256 MiB are needed, and 128 are free."""
    found = copies(peak_bytes=10 * GIB - (128 << 20))
    assert found.expected_us is None
    assert found.most_us == 7000


def test_no_more_is_saved_than_only_copies_run() -> None:
    """Two copies at the same time are each exposed all of it."""
    assert copies(peak_bytes=GIB, exposed_us=5000).expected_us == 5000
