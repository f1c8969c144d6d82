"""What the scheduler knew of a measured step, and what it could still hide: predicted against measured, by instruction.

A collective can be hidden behind compute that neither needs it nor is needed by it (`pgle.schedule.moves`). So much of
its exposed time a better schedule may save, which is PGLE's part; the rest no schedule saves, and it takes another
program: combined, split or pipelined collectives, which `tune` tries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgle.analyze.collectives import MeasuredCollective
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.effective import effective_costs
from pgle.costs.profile.value import Cost, Profile
from pgle.schedule.moves import Placement, placements
from pgle.schedule.predict import Prediction, predict
from pgle.xla.hardware import Hardware
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.names import lhs_names

LOOKED_AT = 64  # collectives, those with most exposed time


@dataclass(frozen=True, slots=True)
class Room:
    """What of one collective's exposed time a schedule could hide."""

    name: str  # of the instruction
    exposed_us: float  # after the last rank arrived, in a step
    hideable_us: float  # as much of it as there is independent compute
    why: str  # it is exposed, in words; empty where little of it is


@dataclass(frozen=True, slots=True)
class Believed:
    """One instruction as the profile has it and as it ran."""

    name: str  # when LHS ran
    kind: str  # compute, collective or copy
    profile_us: float | None  # the cost that the scheduler used; None if the profile lacks it
    measured_us: float  # what it took, once
    count: float  # executions in a step
    # exposed_predicted_us, exposed_us: of collectives, in a step; None of others
    exposed_predicted_us: float | None = None
    exposed_us: float | None = None
    origin: str = ""  # of the profile's cost

    @property
    def error_us(self) -> float:
        """Of a step: how much longer it took than the profile says; the whole where the profile lacks it."""
        return (self.measured_us - (self.profile_us or 0.0)) * self.count


@dataclass(frozen=True)
class ProfileUse:
    """A profile against what ran."""

    rows: tuple[Believed, ...]  # every instruction with a measured cost, the largest error first
    step_us: float  # predicted with the profile's costs
    exposed_us: float  # predicted exposed communication
    covered: float  # share of the measured time whose instructions the profile has
    off: float  # sum of all errors, whatever their sign, as a share of the measured time it covers


@dataclass(frozen=True)
class Overlap:
    """What the scheduler can still do."""

    rooms: tuple[Room, ...]  # of exposed collectives, the one with most to hide first
    hideable_us: float  # together, in a step; what a schedule could save at most
    stuck_us: float  # exposed communication that no schedule hides
    predicted: Prediction  # a step of the module with its measured costs
    use: ProfileUse | None = None  # of the profile that the scheduler had; None where none is given


def find_overlap(
    module: Module,
    costs: Sequence[Cost],
    collectives: Sequence[MeasuredCollective],
    hardware: Hardware,
    *,
    used: Profile | None = None,
    flags: Sequence[str] = (),
) -> Overlap:
    """Judge the schedule that ran."""
    predicted = predict(module, Profile(tuple(costs)), hardware)
    most = sorted(collectives, key=lambda item: -item.transfer_exposed_us)[:LOOKED_AT]
    exposed = {item.instruction.name: item for item in most if item.instruction and item.transfer_exposed_us > 0}
    names = lhs_names(module)
    placed = placements(module, predicted.timeline, flags)
    rooms = [_room(item, placed.get(names.get(name, name))) for name, item in exposed.items()]
    hideable = sum(room.hideable_us for room in rooms)
    return Overlap(
        rooms=tuple(sorted(rooms, key=lambda room: (-room.hideable_us, -room.exposed_us, room.name))),
        hideable_us=hideable,
        stuck_us=sum(room.exposed_us for room in rooms) - hideable,
        predicted=predicted,
        use=None if used is None else _use(module, costs, exposed, hardware, used),
    )


def _room(item: MeasuredCollective, place: Placement | None) -> Room:
    lost = item.transfer_exposed_us
    if place is None:
        return Room(item.name, lost, 0.0, "")
    free = max(place.independent_us - place.cover_us, 0.0) * place.count
    reason = place.reason or ("the compute next to it is too short" if lost > 0 else "")
    return Room(item.name, lost, min(lost, free), reason)


def _use(
    module: Module,
    costs: Sequence[Cost],
    collectives: Mapping[str, MeasuredCollective],
    hardware: Hardware,
    used: Profile,
) -> ProfileUse:
    predicted = predict(module, used, hardware)
    foretold = {item.name: item.exposed_us for item in predicted.timeline.exposures}
    table = LookupTable(module)
    given = table.find(effective_costs(used, module.fingerprint))
    measured = {cost.name: cost for cost in costs}
    rows = []
    for name, row in table.rows.items():
        cost, believed = measured.get(row.filed_as) or measured.get(name), given.get(name)
        if cost is None:
            continue
        ran = collectives.get(row.instruction.name)
        rows.append(
            Believed(
                name=name,
                kind=str(cost.likely_kind),
                profile_us=None if believed is None else believed.cost_us,
                measured_us=cost.cost_us,
                count=float(row.executions),
                exposed_predicted_us=None if ran is None else foretold.get(row.instruction.name),
                exposed_us=None if ran is None else ran.transfer_exposed_us,
                origin="" if believed is None else str(believed.origin),
            )
        )
    total = sum(row.measured_us * row.count for row in rows)
    known = [row for row in rows if row.profile_us is not None]
    covered = sum(row.measured_us * row.count for row in known)
    return ProfileUse(
        rows=tuple(sorted(rows, key=lambda row: (-abs(row.error_us), row.name))),
        step_us=predicted.step_us,
        exposed_us=predicted.exposed_us,
        covered=covered / total if total > 0 else 0.0,
        off=sum(abs(row.error_us) for row in known) / covered if covered > 0 else 0.0,
    )
