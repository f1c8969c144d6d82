"""What a step consists of, in words, colours and tiles: one list for every answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from pgle.report.page import figures
from pgle.report.page.value import Bar, Tile
from pgle.schedule.compare import ExposedGroup
from pgle.schedule.program import Breakdown

Color: TypeAlias = Literal["compute", "exposed", "copy", "idle"]
PARTS: Mapping[Color, str] = {
    "compute": "compute", "exposed": "exposed communication", "copy": "exposed copies", "idle": "idle",
}  # fmt: skip
"""The parts of a step that add up to it, by the name of their colour."""
EXPLAINED = 0.95  # of the exposed time; so much of it the groups on the first screen explain, if `GROUPS` can
GROUPS = 3


def times_of(found: Breakdown) -> tuple[float, ...]:
    """The `PARTS` of a step, in microseconds."""
    return found.compute_us, found.exposed_communication_us, found.exposed_copy_us, found.idle_us


def parts_of(found: Breakdown) -> list[tuple[str, float]]:
    """The `PARTS` of a step by name, in microseconds."""
    return list(zip(PARTS.values(), times_of(found), strict=True))


def tiles(sides: Sequence[tuple[str, Breakdown]], note: str = "") -> tuple[Tile, ...]:
    """Step, exposed and idle time as tiles: of two sides with the change, of one as shares of the step.

    Args:
        sides: one step, or one before and one after, each with its name.
        note: what holds for all figures: ``simulated``.
    """

    def tile(label: str, times: Sequence[float], bars: tuple[Bar, ...] = ()) -> Tile:
        about = figures.change(times[1] / times[0] - 1) if len(times) > 1 and times[0] > 0 else ""
        if len(times) < 2 and not bars:
            about = f"{figures.share(times[0] / max(sides[0][1].step_us, 1e-9))} of the step"
        figure = " → ".join(dict.fromkeys(map(figures.time, times)))
        return Tile(label, figure, bars, ", ".join(filter(None, (about, note))))

    steps = [parts for _, parts in sides]
    longest_us = max(1e-9, *(parts.step_us for parts in steps))
    exposed = [parts.exposed_communication_us + parts.exposed_copy_us for parts in steps]
    return (
        tile("step", [parts.step_us for parts in steps], tuple(_bar(*side, longest_us) for side in sides)),
        tile("exposed: the GPU waits", exposed),
        tile("idle: nothing runs on the GPU", [parts.idle_us for parts in steps]),
    )


def _bar(label: str, found: Breakdown, longest_us: float) -> Bar:
    """A step, as long as it is of the longest; in words the shares of its own time."""
    times = dict(zip(PARTS, times_of(found), strict=True))
    shares = {color: us / max(found.step_us, 1e-9) for color, us in times.items()}
    words = ", ".join(f"{figures.share(share)} {color}" for color, share in shares.items() if share > 5e-4)
    return Bar(label, words, tuple((color, us / longest_us) for color, us in times.items()))


def most_exposed(found: Sequence[ExposedGroup], least_us: float) -> list[ExposedGroup]:
    """The groups that explain most of the exposed time, three at most.

    Args:
        found: collectives in groups.
        least_us: exposed time that need not be explained.
    """
    total_us = left_us = sum(group.most_us for group in found)
    chosen: list[ExposedGroup] = []
    for group in sorted(found, key=lambda group: -group.most_us)[:GROUPS]:
        if left_us <= max((1 - EXPLAINED) * total_us, least_us) or group.most_us <= 0:
            break
        left_us -= group.most_us
        chosen.append(group)
    return chosen
