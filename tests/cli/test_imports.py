"""Commands start fast because they leave out what they do not need; each of these modules costs 5
to 600 ms.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROFILE = "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"

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
        (["confirm", "maxtext_pgle/llama2_7b_pgle_run.log"], {"numpy"}),
        (
            ["verify", PROFILE, "--hlo", "hlo/jax-0.12.0.1/async"],
            {"scipy"},
        ),  # numpy: it estimates what lacks a cost
        (
            ["convert", "nsys_synthetic/synthetic_cases.sqlite", "-o", "OUT"],
            {"scipy", "numpy.ma", "google.protobuf", *OF_HLO},
        ),
        (
            ["compare", "pax_fsdp4/proc0.sqlite", "pax_fsdp4/proc3.sqlite"],
            {"google.protobuf", "scipy.stats"},
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
    assert not set(done.stderr.split()) & (unneeded | {"jax", "matplotlib", "etils"})
