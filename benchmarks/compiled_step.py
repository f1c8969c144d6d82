"""What benchmarks share that compile several sides of one program."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pgle.account.scheduled import step_costs
from pgle.account.step_costs import StepCosts
from pgle.files import write_files
from pgle.requests.predictions import Rehearse
from pgle.run.capture.captured import partitioned
from pgle.run.compiler.compile import compiler_with_cache
from pgle.run.compiler.session import Session, session_with
from pgle.run.rehearse_program import RehearseRequest, prepared


@contextmanager
def opened(
    words: Sequence[str], target: str, devices: int, out: Path
) -> Iterator[tuple[RehearseRequest, Session]]:
    """Capture a program in a folder, and open a session that compiles its step."""
    asked = Rehearse(tuple(words), target=target, devices=devices, output=out)
    with (
        prepared(asked) as (_, request),
        compiler_with_cache(request.python, cached=True) as compiler,
    ):
        base = replace(
            request.compilation(),
            module=partitioned(request.module),
            dump_dir=out / "compiled",
        )
        yield request, session_with(compiler, base, request.hardware, checked=False)


def priced(
    words: Sequence[str],
    target: str,
    devices: int,
    out: Path,
    flags: Sequence[str] = (),
) -> StepCosts:
    """Compile a program's step with its own flags and some more; return its estimated costs."""
    with opened(words, target, devices, out) as (request, session):
        compiled = session.schedule("first", (*request.flags, *flags))
        predicted = session.predicted(compiled)
        return step_costs(compiled.scheduled, predicted, request.hardware)


def kept(place: Path, make: Callable[[], Mapping[str, float]]) -> Mapping[str, float]:
    """Read figures from a JSON file. If it does not exist, make them and write it."""
    if place.exists():
        known: dict[str, float] = json.loads(place.read_text())
        return known
    found = make()
    write_files({place: json.dumps(dict(found))})
    return found
