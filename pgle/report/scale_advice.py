"""What to do about the sizes of a scaling: actions, the largest saving first, and the next
commands.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from pgle.account.next_move import Known, Move, next_move
from pgle.next import Way, WayEnd, to_way
from pgle.report import account, scale_account
from pgle.report.page import figures
from pgle.report.page.value import Advice, Saving
from pgle.report.scale_account import gpus
from pgle.report.scale_control import named
from pgle.run.scale import Scaling
from pgle.scale.answer import Exposed, Judged, ScaleRow
from pgle.worth import is_worth
from pgle.xla.targets import load_target

# Share of the GPU's memory for jax's allocator. Published 70B jobs use it
# (NVIDIA/dgxc-benchmarking).
MOST_MEMORY = 0.94
VARY = "--vary mesh=A,B and {mesh} in the command"
MORE_MEMORY = f"XLA_PYTHON_CLIENT_MEM_FRACTION={MOST_MEMORY}"


def actions(found: Scaling) -> tuple[Advice, ...]:
    """Advise for the size where scaling breaks, else for the largest. The largest saving comes
    first.
    """
    answer = found.answer
    if not answer.best:
        return ()
    item = answer.judged
    given = [*_take_better(found, item), *_more_work(item.row)]
    known = scale_account.account_of(found, item.row)
    if known is not None:
        given += account.actions(known)
    given.sort(key=_expected, reverse=True)
    culprit = _network_culprit(found, item)
    if culprit is not None:
        why = "" if found.are_files else f"give {VARY}"
        if culprit.moves_weights:
            given.append(Advice("Try other meshes", None, why))
        else:
            given.insert(0, _keep_inside(culprit, why))
    if answer.nearest is not None and not answer.nearest.row.tried:
        given.insert(0, _to_fit(found, answer.nearest.row))
    return tuple(given)


def _take_better(found: Scaling, item: Judged) -> Iterator[Advice]:
    """Advise another variant of the same size, if one is faster."""
    others = fitting(found, item)
    better = max(others, key=lambda other: other.efficiency or 0.0, default=item)
    if better.row.variant == item.row.variant:
        return
    ratio = (item.efficiency or 0.0) / max(better.efficiency or 0.0, 1e-9)
    saves = 1 - ratio
    if is_worth(saves):
        yield Advice(f"Take {named(better.row)} at {gpus(item.row)}", _saving(saves))


def _alike(found: Scaling, item: Judged) -> list[Judged]:
    """The variants of the same size that have a step."""
    devices = item.row.devices
    same = (other for other in found.answer.rows if other.row.devices == devices)
    return [other for other in same if other.efficiency]


def fitting(found: Scaling, item: Judged) -> list[Judged]:
    """The variants of the same size whose step fits into the memory."""
    return [other for other in _alike(found, item) if other.row.fits is not False]


def _network_culprit(found: Scaling, item: Judged) -> Exposed | None:
    """The network collectives due to which scaling breaks; None if other meshes were tried at that
    size.
    """
    answer = found.answer
    culprit = answer.culprit
    if answer.breaks is None or culprit is None or culprit.hosts <= 1:
        return None
    variants = _alike(found, item)
    return culprit if len(variants) == 1 else None


def _keep_inside(culprit: Exposed, why: str) -> Advice:
    """Advise a mesh whose communication in every layer stays inside a host."""
    title = f"Keep the mesh axis of the {culprit.kind} inside a host"
    reasons = ("it moves activations in every layer", why)
    return Advice(title, None, "; ".join(filter(None, reasons)))


def _more_work(row: ScaleRow) -> Iterator[Advice]:
    """Advise more work per GPU and step, if moving weights and gradients takes enough of the step.

    XLA moves weights and gradients once per step, for any batch size. With twice the work in a
    step, this time per unit of work is halved.
    """
    weights_us = sum(one.weights_us for one in row.by_collective)
    saves = weights_us / row.step_us / 2
    if not is_worth(saves):
        return
    title = f"Give each of {gpus(row)} more work, or accumulate gradients"
    why = "weights and gradients cross the links once a step, whatever its work"
    more_bytes = row.temp_bytes or 0
    needs_bytes = (row.memory_bytes or 0) + more_bytes
    if needs_bytes > (row.limit_bytes or inf):
        title = f"Accumulate gradients at {gpus(row)}"
        why = f"{why}; a larger batch may not fit"
    elif more_bytes:
        why = f"{why}; temporaries may double, {figures.size(more_bytes)} more"
    yield Advice(title, _saving(saves), why)


def _saving(share: float) -> Saving:
    return Saving(share, share, share)


def _expected(action: Advice) -> float:
    if action.saves is None or action.saves.expected is None:
        return 0.0
    return action.saves.expected


def _to_fit(found: Scaling, row: ScaleRow) -> Advice:
    """Say how much memory a step lacks, and how to make it fit."""
    fit = found.request.fit or "batch"
    finds = f"--fit {fit} finds the largest that fits"
    remedy = f"write {{{fit}}} in the command, and {finds}"
    if _fits_with_more(found, row):
        remedy = f"set {MORE_MEMORY}"
    lacks_bytes = (row.memory_bytes or 0) - (row.limit_bytes or 0)
    why = f"{figures.size(lacks_bytes)} are missing; {remedy}"
    return Advice(f"Make it fit at {gpus(row)}", None, why)


def _fits_with_more(found: Scaling, row: ScaleRow) -> bool:
    """Whether a step that does not fit would fit if jax's allocator had `MOST_MEMORY` of the
    GPU.
    """
    most = MOST_MEMORY * load_target(found.target).memory_bytes
    return (row.memory_bytes or 0) <= most


def next_way(found: Scaling) -> Way:
    """Return the first action that is a command. If nothing can be run, say what to do first."""
    answer = found.answer
    if answer.first is None:
        return _repair(found)
    if answer.nearest is not None and not answer.good:
        return Way(done=_less_memory(found, answer.nearest.row), end=WayEnd.TODO)
    row = answer.judged.row
    known = scale_account.account_of(found, row)
    if known is not None:
        state = Known(account=known)
        commands = {
            Move.MEASURE: scale_account.measure(found, row),
            Move.ADVISE: scale_account.advise(found, row),
            Move.SEARCH: scale_account.tune(found, row),
        }
        if next_move(state) is not Move.END:
            return to_way([account.follow(state, commands)])
    if found.are_files or answer.breaks is None or answer.breaks.row.values:
        end = "nothing that pgle can change shortens this step at these sizes"
        return Way(done=end)
    return Way(done=f"repeat with {VARY}", end=WayEnd.TODO)


def _repair(found: Scaling) -> Way:
    """Advise if no size has a step."""
    if found.are_files:
        files = "give HLO files that hold a step of the program"
        return Way(done=files, end=WayEnd.TODO)
    first = "write {devices} where the program takes its number of GPUs"
    if any("{" in word for word in found.request.words):
        first = "correct the program"
    return Way(done=f"{first}, then repeat the command", end=WayEnd.TODO)


def _less_memory(found: Scaling, row: ScaleRow) -> str:
    """Advise if no size fits."""
    if _fits_with_more(found, row):
        return f"repeat with {MORE_MEMORY} in the environment"
    if found.request.fit:
        return f"give smaller values of --vary {found.request.fit}"
    return "write {batch} in the command, and give --vary batch=1,2,4,8 --fit batch"
