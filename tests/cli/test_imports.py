"""Commands start fast because they leave out what they do not need; each of these modules costs 5
to 600 ms.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROFILE = "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"

MOST = {
    "run": 36,
    "doctor": 36,
    "tune": 36,
    "show": 66,
    "diff": 66,
    "flags": 60,
    "confirm": 54,
    "verify": 99,
    "convert": 89,
    "compare": 82,
    "predict": 134,
}
"""Files of pgle that a command loads at most."""

OF_PROGRAMS = {
    "pgle.run.process.process", "pgle.run.ask.machine", "pgle.run.ask.jaxlib",
}  # fmt: skip
"""What starts programs, or asks for those that are installed."""

OF_RUNS = {"pgle.run.compare", "pgle.steps.compare", "pgle.steps.collect"}
"""What reads and compares step times."""

OF_TRACES = {
    "pgle.analyze.analysis",
    "pgle.costs.measure.measured",
    "pgle.trace.steady",
}
"""What takes a measured step apart."""

OF_HLO = {
    "pgle.xla.hlo.proto", "pgle.costs.profile.coverage", "pgle.costs.estimate.estimate", "pgle.schedule.predict",
    "pgle.xla.flags.catalogue",
}  # fmt: skip
"""What a conversion without HLO does without: half of its time, where the trace is small."""


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        *(
            ([name, "-h"], {"numpy", "google.protobuf"})
            for name in ("run", "doctor", "compare", "convert", "tune")
        ),
        (["show", PROFILE], {"numpy", "google.protobuf"}),
        (["diff", PROFILE, PROFILE], {"numpy", "google.protobuf"}),
        (
            ["flags", "explain", "xla_gpu_enable_latency_hiding_scheduler"],
            {"numpy", "google.protobuf"},
        ),
        (
            ["confirm", "maxtext_pgle/llama2_7b_pgle_run.log"],
            {"numpy", "google.protobuf", *OF_HLO, *OF_PROGRAMS},
        ),
        (
            ["verify", PROFILE, "--hlo", "hlo/jax-0.12.0.1/async"],
            {"scipy", *OF_PROGRAMS, *OF_RUNS, *OF_TRACES},
        ),  # numpy: it estimates what lacks a cost
        (["predict", "pax_fsdp4/proc0/dump"], {*OF_PROGRAMS, *OF_RUNS, *OF_TRACES}),
        (
            ["convert", "nsys_synthetic/synthetic_cases.sqlite", "-o", "OUT"],
            {"scipy", "numpy.ma", "google.protobuf", *OF_HLO, *OF_PROGRAMS},
        ),
        (
            ["compare", "pax_fsdp4/proc0.sqlite", "pax_fsdp4/proc3.sqlite"],
            {"google.protobuf", "scipy.stats", "pgle.run.rounds", *OF_PROGRAMS},
        ),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, list) else "",
)
def test_commands_import_only_what_they_need(
    testdata: Path, tmp_path: Path, arguments: list[str], unneeded: set[str]
) -> None:
    words = [
        str(tmp_path / "out.pbtxt") if word == "OUT" else word for word in arguments
    ]
    code = "import sys; from pgle.cli.main import run; run(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=testdata,
        check=True,
    )
    assert done.stdout, done.stderr
    loaded = set(done.stderr.split())
    assert not loaded & (unneeded | {"jax", "matplotlib", "etils"})
    ours = [name for name in loaded if name.partition(".")[0] == "pgle"]
    assert len(ours) <= MOST[arguments[0]]
