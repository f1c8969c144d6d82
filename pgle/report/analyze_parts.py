"""The parts of an analysed step as tables for a terminal: layers, collectives, memory, overlap, what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pgle.analyze.analysis import MeasuredStep
from pgle.analyze.collectives import MeasuredCollective
from pgle.analyze.differences import Change, Differences, Verdict
from pgle.analyze.layers import Layer, Layers, Phase, folded, short_source
from pgle.analyze.memory import Memory
from pgle.analyze.overlap import Believed, Overlap, ProfileUse, Room
from pgle.analyze.work import Products
from pgle.errors import cut
from pgle.report.text import duration, numbers, printable, show_rest, table
from pgle.report.timeline.scene import parts_of

LATE = 0.005  # of the step; a smaller change of what ranks wait for each other is not told
SHOWN = 8  # collectives in the text table; ``--json`` has all
SCOPE_WIDTH = 24  # characters of a layer's name in the text table
SCOPES, LINES, VALUES, CHANGES, PRODUCTS = 10, 6, 5, 12, 4
"""Rows of the tables of layers, source lines, values in memory, changes and types of products."""
COLLECTIVE_COLUMNS = ("collective", "time", "exposed", "waits", "bus GB/s", "expected")
WAITS = (
    "time and exposed are those after the last rank arrived; what the others spend in a collective before that, with "
    "nothing beside it, is under waits"
)
LAYER_COLUMNS = ("layer", "GPU time", "fwd", "bwd", "again", "update", "exposed", "roof")
LINE_COLUMNS = ("source line", "GPU time", "share", "instructions", "roof")


def idle_line(step: MeasuredStep) -> str:
    """What idle time of at least a thousandth of the step consists of; empty where there is none."""
    causes = [f"{name} {duration(us)}" for name, us in step.idle_us.items() if us >= 0.001 * step.step_us]
    return f"idle: {', '.join(causes)}" if causes else ""


def show_layers(screen: Any, layers: Layers, step_us: float) -> None:
    """The step by layer, source line and type of product."""
    screen.print()
    screen.print(numbers(LAYER_COLUMNS, [scope_row(*scope, step_us) for scope in folded(layers.scopes, SCOPES)]))
    screen.print()
    screen.print(numbers(LINE_COLUMNS, [line_row(layer, step_us) for layer in layers.lines[:LINES]]))
    for line in utilisation_lines(layers):
        screen.print(line)


def utilisation_lines(layers: Layers) -> list[str]:
    """How much of the GPU's peak the step uses; nothing where that is unknown."""
    if layers.mfu is None or layers.hfu is None:
        return []
    again = f"; {layers.hfu:.1%} with what is computed again" if layers.hfu > layers.mfu else ""
    return [f"model flops utilisation (MFU) {layers.mfu:.1%} of the peak{again}"]


def product_lines(products: Sequence[Products], step_us: float) -> Iterator[str]:
    """Matrix products by type, how fast, and who says what type it was."""
    for item in products[:PRODUCTS]:
        peak = "" if item.peak_tflops is None else f" of {item.peak_tflops:.4g}"
        where = "" if item.tensor_cores else ", off the Tensor Cores"
        speed = f", {item.tflops:.3g}{peak} TFLOP/s" if item.flops else ""
        named = item.named_us / item.us if item.us else 0.0
        says = "by the kernels' names" if named > 0.995 else f"{named:.0%} by the kernels' names, else as the HLO asks"
        yield (
            f"matrix products in {item.dtype}{where}: {duration(item.us)} ({item.us / step_us:.1%}){speed}; "
            f"{says if named else 'as the HLO asks'}"
        )


def line_row(layer: Layer, step_us: float) -> tuple[str, ...]:
    """A source line under `LINE_COLUMNS`."""
    name = short_source(layer.name) or "(no line)"
    return name, duration(layer.us), f"{layer.us / step_us:.1%}", str(layer.instructions), _of_roofline([layer])


def scope_row(name: str, group: Sequence[Layer], step_us: float) -> tuple[str, ...]:
    """A part of the program under `LAYER_COLUMNS`."""
    phases = [sum(layer.us for layer in group if layer.phase == phase) for phase in _COLUMNS]
    shares = [*phases, sum(layer.exposed_us for layer in group)]
    shown = [f"{us / step_us:.1%}" if us >= 0.0005 * step_us else "" for us in shares]
    return short_scope(name) or "(no scope)", duration(sum(layer.us for layer in group)), *shown, _of_roofline(group)


def short_scope(name: str) -> str:
    """The last scopes, as many as fit; other names as they are."""
    if "/" not in name:
        return name
    scopes = name.split("/")
    while len(scopes) > 1 and len("/".join(scopes)) > SCOPE_WIDTH:
        scopes = ["…", *(scopes[2:] if scopes[0] == "…" else scopes[1:])]
        if len(scopes) == 2:
            break
    return cut("/".join(scopes), SCOPE_WIDTH)


_COLUMNS = (Phase.FORWARD, Phase.BACKWARD, Phase.REMATERIALISED, Phase.OPTIMIZER)


def _of_roofline(group: Sequence[Layer]) -> str:
    known = [(layer.roofline_us, layer.us) for layer in group if layer.roofline_us is not None]
    total = sum(us for _, us in known)
    return f"{sum(roofline for roofline, _ in known) / total:.0%}" if total > 0 else ""


def show_collectives(screen: Any, collectives: Sequence[MeasuredCollective]) -> None:
    """The most exposed collectives."""
    screen.print()
    screen.print(numbers(COLLECTIVE_COLUMNS, map(collective_row, collectives[:SHOWN])))
    show_rest(screen, len(collectives) - SHOWN)
    if any(item.wait_us for item in collectives):
        screen.print(WAITS, style="dim")


def collective_row(item: MeasuredCollective) -> tuple[str, ...]:
    """A collective under `COLLECTIVE_COLUMNS`."""
    times = f"{item.count:.3g} × " if item.count != 1 else ""
    bus, link = item.bus_gb_s, item.link
    return (
        printable(item.name) + (" (sync)" if item.sync else ""),
        f"{times}{duration(item.time_us)}",
        duration(item.transfer_exposed_us),
        duration(item.wait_us),
        "–" if bus is None or link is None else f"{bus:.3g} of {link.peak_gb_s:.3g}",
        "–" if link is None else duration(link.estimate_us),
    )


def show_memory(screen: Any, memory: Memory) -> None:
    """The peak and what lives there."""
    screen.print()
    screen.print(memory_line(memory))
    columns, rows = memory_table(memory)
    if rows:
        screen.print(table(columns, rows, right="size", whole="size"))


def memory_line(memory: Memory) -> str:
    """The peak, its share of the limit, and what it consists of."""
    limit = ""
    if memory.limit_bytes is not None and memory.device_bytes is not None:
        jax = " that JAX takes by default" if memory.limit_bytes < memory.device_bytes else ""
        limit = f", {memory.used_share:.1%} of the {_gib(memory.limit_bytes)}{jax}"
    return (
        f"memory at its peak: {_gib(memory.peak_bytes)}{limit}: arguments {_gib(memory.arguments_bytes)}, results "
        f"{_gib(memory.outputs_bytes)}, temporary {_gib(memory.temporary_bytes)}, most at {memory.at} ({memory.origin})"
    )


def memory_table(memory: Memory) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """Columns and rows of the largest values at the peak."""
    rows = ((i.name, _gib(i.size_bytes), f"{i.shape} {short_source(i.source)}") for i in memory.live[:VALUES])
    return ("largest there", "size", ""), tuple(rows)


def _gib(size: int) -> str:
    power = max((size.bit_length() - 1) // 10, 0)
    return f"{size / 1024**power:.3g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[min(power, 4)]}"


ROOM_COLUMNS = ("collective", "exposed", "could hide", "why exposed")
BELIEVED_COLUMNS = ("most wrong", "times", "profile", "measured", "of the step")


def show_overlap(screen: Any, overlap: Overlap, step_us: float) -> None:
    """What the scheduler could still hide, and how well its profile knew the step."""
    screen.print()
    screen.print(path_line(overlap))
    if overlap.hideable_us + overlap.stuck_us >= 0.001 * step_us:
        screen.print(overlap_line(overlap, step_us))
        rows = [room_row(room) for room in overlap.rooms[:VALUES] if room.exposed_us >= 0.0005 * step_us]
        screen.print(table(ROOM_COLUMNS, rows, right="exposed|could hide"))
    if overlap.use is None:
        return
    screen.print()
    screen.print(use_line(overlap.use))
    cells = [believed_row(row, step_us) for row in overlap.use.rows[:VALUES] if abs(row.error_us) >= 0.0005 * step_us]
    if cells:
        screen.print(numbers(BELIEVED_COLUMNS, cells))


def overlap_line(overlap: Overlap, step_us: float) -> str:
    """What is exposed, and how much of it a schedule could hide."""
    lost = overlap.hideable_us + overlap.stuck_us
    stuck = f"; no schedule hides the other {duration(overlap.stuck_us)}" if overlap.stuck_us > 0.001 * lost else ""
    stuck += ": 'pgle tune' tries combined and pipelined collectives" if overlap.stuck_us > 0.01 * step_us else ""
    return (
        f"exposed after the last rank arrived: {duration(lost)}; a schedule could hide up to "
        f"{duration(overlap.hideable_us)} ({overlap.hideable_us / step_us:.1%} of the step){stuck}"
    )


def path_line(overlap: Overlap) -> str:
    """What the step waits for, one after the other, by the schedule and the measured costs."""
    parts = [(us, kind) for kind, us in overlap.predicted.timeline.path_us.items() if us > 0]
    said = ", ".join(f"{kind} {duration(us)}" for us, kind in sorted(parts, reverse=True))
    return f"critical path of the schedule with these costs: {said}"


def room_row(room: Room) -> tuple[str, ...]:
    """An exposed collective under `ROOM_COLUMNS`."""
    return room.name, duration(room.exposed_us), duration(room.hideable_us), room.why


def use_line(use: ProfileUse) -> str:
    """What the profile covered, how far off it was, and what it foretold."""
    return (
        f"the scheduler's profile: costs for {use.covered:.1%} of the measured time, off by {use.off:.1%}; it foretold "
        f"{duration(use.step_us)} with {duration(use.exposed_us)} exposed"
    )


def believed_row(row: Believed, step_us: float) -> tuple[str, ...]:
    """An instruction under `BELIEVED_COLUMNS`."""
    believed = "–" if row.profile_us is None else duration(row.profile_us)
    return row.name, f"{row.count:.3g}", believed, duration(row.measured_us), f"{row.error_us / step_us:+.2%}"


def show_differences(screen: Any, found: Differences) -> None:
    """The verdict, both breakdowns, and the rows that add up to what changed."""
    screen.print(verdict_line(found), style="bold")
    before_us, after_us = found.late_us
    if abs(after_us - before_us) >= LATE * found.before.step_us:
        rank = printable(found.late_rank) or "the last rank, which differs"
        screen.print(f"The other ranks wait {duration(after_us)} for {rank}; before they waited {duration(before_us)}.")
    before, after = ([*parts_of(parts), ("step", parts.step_us)] for parts in (found.before, found.after))
    rows = [
        (name, duration(one), duration(two), signed(two - one), f"{(two - one) / found.before.step_us:+.2%}")
        for (name, one), (_, two) in zip(before, after, strict=True)
    ]
    screen.print()
    screen.print(numbers(("", "before", "after", "change", "of the step"), rows))
    if found.changes:
        columns, changes = ("", "part", "before", "after", "of the step"), found.changes[:CHANGES]
        screen.print()
        screen.print(table(columns, map(_change, changes), right="before|after|of the step", whole="|before|after"))
    more = len(found.changes) - CHANGES
    rest = f"… and {more} more (--json has all); " if more > 0 else ""
    screen.print(
        f"{rest}smaller changes add up to {signed(found.other_us)}; {found.matched} instructions in both, "
        f"{found.renamed} of them under another name",
        style="dim",
    )


def verdict_line(found: Differences) -> str:
    """What can be said of the typical step."""
    change = f"{signed(found.typical_us)} ({found.typical_us / found.before.step_us:+.2%})"
    noise = "" if found.noise_us is None else f" (noise: ±{found.noise_us / found.before.step_us:.2%})"
    if found.verdict == Verdict.CANNOT_TELL:
        return f"Cannot tell whether the typical step changed: {change}{noise}; {found.why}."
    return f"The typical step is {found.verdict}: {change}{noise}."


def _change(change: Change) -> tuple[str, ...]:
    before, after = change.before, change.after
    renamed = f", was {before.name}" if before and after and before.name != after.name else ""
    where = short_source(change.source) or "/".join(change.op_name.split("/")[-2:])
    about = "; ".join(filter(None, (f"{change.name}{renamed}", where, change.note)))
    times = ["–" if part is None else duration(part.us) for part in (before, after)]
    return str(change.kind), printable(about), *times, f"{change.share:+.2%}"


def signed(us: float) -> str:
    """A difference of times."""
    return f"{'+' if us >= 0 else '−'}{duration(abs(us))}"
