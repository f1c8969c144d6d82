"""Compile, time and trace one step in a process of its own: ``python -m benchmarks.gpu.probe FOLDER
large``.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.gpu.cases import filled
from benchmarks.gpu.meters import (
    TRACED,
    as_hlo_proto,
    compiled,
    step_times,
    without_python,
)
from benchmarks.gpu.steps import steps

CASE = "offload_none"


def main(folder: Path, *, small: bool) -> None:
    """Write ``facts.json``, ``step.hlo.pb`` and ``step.xplane.pb``."""
    import jax

    from pgle.xla.hlo.dumps import read_module

    [case] = [case for case in steps(small=small) if case.name == CASE]
    executable, _ = compiled(case)
    arguments = filled(case)
    times_s, how = step_times(lambda: executable(*arguments))
    module = executable.runtime_executable().hlo_modules()[0]
    hlo = folder / "step.hlo.pb"
    hlo.write_bytes(as_hlo_proto(module.as_serialized_hlo_module_proto()))
    read = read_module(hlo)
    names = sorted(item.name for item in read.walk())
    facts = {
        "us": statistics.median(times_s) * 1e6,
        "how": how,
        "module": read.name,
        "program_id": read.program_id,
        "fingerprint": read.fingerprint,
        "instructions": names,
    }
    with tempfile.TemporaryDirectory() as traces:
        with jax.profiler.trace(traces, profiler_options=without_python()):
            for _ in range(TRACED):
                jax.block_until_ready(executable(*arguments))
        [trace] = Path(traces).rglob("*.xplane.pb")
        shutil.copyfile(trace, folder / "step.xplane.pb")
    (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), small=sys.argv[2] == "small")
