"""The costs of one program: the value, and what is to be said of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgle.costs.lookup.launch import Launch
from pgle.costs.measure.programs import Program
from pgle.costs.profile.align import Alignment
from pgle.costs.profile.value import Cost, CostKind, Ends
from pgle.trace.windows import MeasuredWindow

if TYPE_CHECKING:
    from pgle.costs.lookup.contention import Contention

MODULES_SHOWN = 3  # modules that are named where a warning is about several


@dataclass(frozen=True)
class ProgramCosts:
    """The costs of one program."""

    program: Program  # what they are of
    costs: tuple[Cost, ...]  # one per name, ordered by name
    window: MeasuredWindow  # the executions they stand on
    left_out: Mapping[str, tuple[str, ...]]  # traced names that are no cost, by reason
    occurrences: Mapping[str, Mapping[str, float]]  # of each collective, what `Profile.occurrences` keeps
    warnings: tuple[str, ...] = ()  # one line each
    launch: Launch | None = None  # gaps between kernels; None where too few were seen
    contention: Contention | None = (
        None  # how kernels slow down while collectives run; None if the trace does not show it
    )
    ranks: int = 0  # how many meet in the largest collective; 0 where no HLO says it
    # JAX's global ids of the devices that ran it; empty where the trace does not say all of them
    rank_ids: tuple[int, ...] = ()
    ends: tuple[Ends, ...] = ()  # what `Profile.ends` keeps

    @property
    def skew_us(self) -> float | None:
        """How much longer compute takes per step on the slowest rank than typically; None on a single device."""
        known = [(cost.skew_us, cost.samples) for cost in self.costs if cost.skew_us is not None]
        return sum(skew * samples for skew, samples in known) / self.window.used if known else None


def warnings_of(found: ProgramCosts, alignment: Alignment) -> tuple[str, ...]:
    """What the user should know, one line each."""
    window, label, given = found.window, found.program.key.name, len(found.window.devices)
    collectives = [cost for cost in found.costs if cost.kind == CostKind.COLLECTIVE]
    lines = []
    if window.seen and window.used == given and not window.dropped:
        lines.append(
            f"{label}: one execution per device in the window, so warm-up cannot be recognised; trace 5 or more steps"
        )
    if collectives and given < max(found.ranks, 2):
        lines.append(
            f"{label}: {given} of {found.ranks or 'several'} ranks given: "
            "collective costs include the wait for the others; give all traces"
        )
    if collectives and (line := alignment.describe(window.fewest, window.steps_seen)):
        lines.append(f"{label}: {line}; trace the same steps on all")
    if collectives and found.program.hlo is None:
        lines.append(
            f"{label}: no HLO, so names of collectives may not be those that LHS looks up; pass --hlo DUMP_DIR"
        )
    if len(found.program.fingerprints) > 1:
        lines.append(
            f"{label}: {len(found.program.fingerprints)} fingerprints over the processes (autotuning differs); "
            "bare names serve all, fingerprint names would not"
        )
    lines += (f"{label}: {line}" for line in _dispersion(collectives))
    missing = found.left_out.get("not in the HLO module", ())
    if missing:
        lines.append(f"{label}: {len(missing)} traced names are not in its HLO module ({', '.join(missing[:3])})")
    return tuple(lines)


def _dispersion(collectives: Sequence[Cost]) -> list[str]:
    """A line where collectives differ much between executions."""
    noisy = [cost for cost in collectives if cost.samples > 2 and cost.spread > 0.5]
    if not noisy:
        return []
    worst = max(noisy, key=lambda cost: cost.cost_us * cost.spread)
    count = "1 collective varies" if len(noisy) == 1 else f"{len(noisy)} collectives vary"
    return [
        f"{count} by more than 50 % between executions: {worst.name} takes {worst.min_us:.0f} to {worst.max_us:.0f} µs"
    ]


def folded(lines: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The lines in order of first appearance, those that differ only in their module as one.

    Args:
        lines: module and line, which begins with ``MODULE: ``; others stay as they are.
    """
    modules: dict[str, dict[str, None]] = {}
    for module, line in lines:
        prefix = f"{module}: "
        alone = not line.startswith(prefix)
        modules.setdefault(line if alone else line[len(prefix) :], {}).update({} if alone else {module: None})
    return tuple(f"{_names(list(names))}: {text}" if names else text for text, names in modules.items())


def _names(names: list[str]) -> str:
    if len(names) <= MODULES_SHOWN:
        return ", ".join(names)
    return f"{len(names)} modules ({', '.join(names[:MODULES_SHOWN])}, …)"
