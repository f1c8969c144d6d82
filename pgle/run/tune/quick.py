"""A quick look at what flags could do where a profile does little: three moves of the search, each tried once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from pgle.run.rehearse.compiler.request import OnPhase
from pgle.run.tune.bench import open_bench
from pgle.run.tune.request import TuneRequest
from pgle.tune.moves import Axis, by_exposure
from pgle.tune.trial import QuickLook, Trial

MOVES = 3
AT_ONCE = 2


def quick_look(request: TuneRequest, until: float, on_phase: OnPhase = lambda phase: None) -> QuickLook:
    """Try the moves that are about the most exposed time; nothing is left in `request.out`.

    Args:
        request: the module and what it is compiled for.
        until: the time (`time.monotonic`) by which it ends; what is not compiled by then is left out.
        on_phase: hears what compilations are at.

    Raises:
        UserError: as `tune`.
    """
    with open_bench(request, on_phase) as bench:

        def tried(axis: Axis) -> Trial:
            return bench.trial(axis.settings[0], axis.name)

        bench.until = until
        bench.start()
        pgle = bench.pgle
        with ThreadPoolExecutor(AT_ONCE) as pool:
            trials = list(pool.map(tried, strongest(bench.axes(), pgle.trial.exposed_by_kind)))
    compiled = [trial for trial in trials if trial.step_us is not None and not trial.same_as]
    return QuickLook(pgle.trial, tuple(sorted(compiled, key=lambda trial: trial.step_us or 0.0)))


def strongest(found: Iterable[Axis], exposed: Mapping[str, float]) -> list[Axis]:
    """The axes to look at; of a preset and a flag that come to the same the first alone."""
    ordered = by_exposure(found, exposed)
    settings = [axis.settings[0] for axis in ordered]
    return [axis for number, axis in enumerate(ordered) if axis.settings[0] not in settings[:number]][:MOVES]
