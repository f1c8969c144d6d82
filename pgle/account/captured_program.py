"""Facts of a captured program around its step: devices that it leaves idle, and a step that it
compiles again and again. These opportunities go before all savings.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pgle.account.value import Basis, Opportunity, OpportunityKind, StepPart
from pgle.errors import many


@dataclass(frozen=True, slots=True)
class Recompiled:
    """A function that a program compiled more than once."""

    function: str  # its name in the program
    compilations: int
    executions: int  # of all its compilations together
    why: str  # what differs between compilations, one clause
    remedy: str  # in the imperative

    @property
    def is_each_step(self) -> bool:
        """Whether more than half of the executions needed a compilation of their own. Two
        compilations are normal: the second step may find its arrays in other places.
        """
        return self.compilations > 2 and 2 * self.compilations > self.executions

    @property
    def words(self) -> str:
        """The finding and the remedy in one line."""
        times = f"{self.function} is compiled {self.compilations} times"
        return f"{times}: {self.why}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class CapturedFacts:
    """Facts of a captured program besides the module of its step."""

    devices: int = 0  # number that the user asked for; 0 if the user did not ask
    recompiled: Recompiled | None = None  # its step; None if it was compiled once

    @property
    def words(self) -> tuple[str, ...]:
        """Warnings that the account of the step repeats, so that they can be left out."""
        found = self.recompiled
        return (found.words,) if found is not None and found.is_each_step else ()

    def leaves_idle(self, used: int) -> bool:
        """Whether a step on `used` devices leaves some idle that the user asked for."""
        return used < self.devices


NOTHING_KNOWN = CapturedFacts()


def opportunities_of(
    facts: CapturedFacts, devices: int, step_us: float
) -> Iterator[Opportunity]:
    """The opportunities that go before all savings of a step.

    Args:
        devices: number of devices that run the step.
        step_us: length of the step in microseconds.
    """
    if facts.recompiled is not None and facts.recompiled.is_each_step:
        yield _recompiled(facts.recompiled)
    if facts.leaves_idle(devices):
        yield _idle(devices, facts.devices, step_us)


def _recompiled(found: Recompiled) -> Opportunity:
    times = f"{found.compilations} times for {many(found.executions, 'step')}"
    why = f"{found.function} is compiled {times}, while GPUs wait: {found.why}"
    edit = f"{found.remedy[:1].upper()}{found.remedy[1:]}."
    kind = OpportunityKind.RECOMPILATION
    return _first(kind, "Compile the step once", why, edit)


def _idle(used: int, asked: int, step_us: float) -> Opportunity:
    """Use idle devices. The step can lose at most their share. It loses less, because devices then
    reduce gradients, and each still updates the whole state.
    """
    why = f"the step runs on {used} of the {asked} that were asked for"
    found = _first(OpportunityKind.IDLE_DEVICES, f"Use all {asked} GPUs", why, _EDIT)
    return replace(found, code=_CODE, most_us=step_us * (1 - used / asked))


def _first(kind: OpportunityKind, title: str, why: str, edit: str) -> Opportunity:
    """An opportunity that comes first, with unknown saving."""
    return Opportunity(
        kind=kind,
        expected_us=None,
        least_us=0.0,
        most_us=0.0,
        part=StepPart.COMPUTE,
        basis=Basis.ESTIMATED,
        title=title,
        why=why,
        edit=edit,
        comes_first=True,
    )


_EDIT = (
    "Write this before the loop, for your batch and your state. Divide each new batch in the same "
    "way."
)
_CODE = """\
from jax.sharding import Mesh, NamedSharding, PartitionSpec
mesh = Mesh(jax.devices(), ("data",))
batch = jax.device_put(batch, NamedSharding(mesh, PartitionSpec("data")))
state = jax.device_put(state, NamedSharding(mesh, PartitionSpec()))"""
