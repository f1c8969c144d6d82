"""The 32 rows of openxla/xla#47515, against what pgle predicts: docs/evidence/amd-maxtext.md.

    python benchmarks/amd_maxtext.py -o FOLDER

Eight programs of MaxText on eight MI350, each with four models of XLA's scheduler
(`amd_maxtext.tsv`). Each program is lowered here (`programs/maxtext_step.py`) with all its layers,
compiled by jax's ROCm plugin and simulated. Needs an environment with MaxText's dependencies, the
plugin and pgle; no GPU. About 30 seconds of a core a program and policy. What is in FOLDER is not
computed again. Prints the tables of the page.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pgle.costs.profile.coverage import estimate_profile
from pgle.costs.profile.files import profile_files
from pgle.files import write_files
from pgle.run.compiler.compile import CompileRequest
from pgle.run.compiler.session import open_session
from pgle.schedule.predict import Prediction
from pgle.schedule.simulate import Stream
from pgle.xla.flags.presets import preset
from pgle.xla.targets import find_hardware, load_target

PUBLISHED = Path(__file__).with_suffix(".tsv")
LOWER = Path(__file__).parent / "programs/maxtext_step.py"
TARGET = "mi350x"
MEMORY_FRACTION = 0.97  # ROCm/MAD's `XLA_PYTHON_CLIENT_MEM_FRACTION`
LEAST = 5e-5  # of the step; a smaller change is none

COMMON = (
    "attention=cudnn_flash_te",
    "capacity_factor=1",
    "dataset_type=synthetic",
    "dtype=bfloat16",
    "enable_checkpointing=false",
    "logits_dot_in_fp32=false",
    "max_segments_per_seq=32",
    "megablox=false",
    "run_name=pgle",
    "sparse_matmul=false",
    "use_iota_embed=true",
    "weight_dtype=bfloat16",
)
"""What the configurations of gfx950 in ROCm/MAD `scripts/jax-maxtext/env_scripts` share."""

OWN = {
    "deepseek2-16b": ("capacity_factor=1.25", "sharding_tolerance=0.05"),
    "mixtral-8x7b": ("moe_dispatch_no_expert_sharding=true",),
}
"""What they set for one model."""

POLICIES = {
    "llama3.1-8b": ("minimal_flash", "full"),
    "qwen3-14b": ("minimal_flash", "full"),
    "llama3.1-70b": ("full", "minimal_flash"),
    "deepseek2-16b": ("minimal_flash", "full"),
    "qwen3-30b-a3b": ("minimal", "full"),
    "mixtral-8x7b": ("minimal", "full"),
}
"""`remat_policy` of AMD's configuration, which has another batch, and the other end."""

_SOL = "--xla_gpu_enable_analytical_sol_latency_estimator"
_ANALYTICAL = "--xla_gpu_enable_analytical_latency_estimator"
ESTIMATORS = {
    "T-shirt": (f"{_SOL}=false",),
    "Analytical": (f"{_SOL}=false", f"{_ANALYTICAL}=true"),
    "SoL": (f"{_SOL}=true",),
    "PGLE": (f"{_SOL}=false",),
}


@dataclass(frozen=True)
class Published:
    """A row of the pull request."""

    model: str
    length: int
    batch: int  # sequences of each GPU
    mesh: str  # ``fsdp8``, ``ep8``
    estimator: str
    step_s: float
    communication: float  # share of the trace
    exposed: float  # share of the trace

    @property
    def program(self) -> str:
        return f"{self.model}, {self.batch}"


@dataclass(frozen=True)
class Predicted:
    """The same, predicted."""

    policy: str
    step_s: float
    least_s: float
    most_s: float
    communication: float  # share of the step
    exposed: float  # share of the step
    fits: bool  # in the GPU's memory

    @property
    def range(self) -> str:
        """The step and its range, in seconds."""
        return f"{self.step_s:.3f} ({self.least_s:.2f} … {self.most_s:.2f})"


def published() -> list[Published]:
    """All rows, in the order of the pull request."""
    with PUBLISHED.open() as file:
        return [_published(row) for row in csv.DictReader(file, delimiter="\t")]


def _published(row: dict[str, str]) -> Published:
    communication = float(row["communication_pct"]) / 100
    exposed = float(row["exposed_pct"]) / 100
    return Published(
        model=row["model"],
        length=int(row["length"]),
        batch=int(row["batch"]),
        mesh=row["mesh"],
        estimator=row["estimator"],
        step_s=float(row["step_s"]),
        communication=communication,
        exposed=exposed,
    )


def settings(row: Published, policy: str) -> tuple[str, ...]:
    """MaxText's words for a program."""
    experts = row.mesh.startswith("ep")
    mesh = "ici_expert_parallelism" if experts else "ici_fsdp_parallelism"
    whole = ("ici_fsdp_parallelism=1",) if experts else ()
    return (
        f"model_name={row.model}",
        f"max_target_length={row.length}",
        f"per_device_batch_size={row.batch}",
        f"remat_policy={policy}",
        *whole,
        f"{mesh}=8",
        *COMMON,
        *OWN.get(row.model, ()),
    )


def _place(row: Published, policy: str, folder: Path) -> Path:
    return folder / f"{row.model}.{row.batch}.{policy}.json"


def predictions(row: Published, policy: str, folder: Path) -> dict[str, Predicted]:
    """A program with one policy, by estimator."""
    place = _place(row, policy, folder)
    if not place.exists():
        found = _computed(row, policy, place.with_suffix(""))
        record = {name: asdict(item) for name, item in found.items()}
        write_files({place: json.dumps(record, indent=1)}, force=True)
    record = json.loads(place.read_text())
    return {name: Predicted(**item) for name, item in record.items()}


def _computed(row: Published, policy: str, out: Path) -> dict[str, Predicted]:
    out.mkdir(parents=True)
    module = out / "step.mlir"
    words = (*settings(row, policy), f"base_output_directory={out}")
    with (out / "lowered.log").open("w") as log:
        command = (sys.executable, str(LOWER), str(module), *words)
        subprocess.run(command, check=True, stdout=log, stderr=log)
    target = load_target(TARGET)
    memory_bytes = int(MEMORY_FRACTION * target.memory_bytes)
    flags = tuple(flag.word for flag in preset("rocm").flags)
    request = CompileRequest(
        module,
        target.texts,
        out / "compiled",
        flags=flags,
        allocator_bytes=memory_bytes,
        vendor=target.vendor.name,
    )
    hardware = find_hardware(target)
    found: dict[str, Predicted] = {}
    with open_session(
        request, hardware, python=sys.executable, cached=False
    ) as session:
        profile = None
        for name, more in ESTIMATORS.items():
            if name == "PGLE":
                first = session.schedule("T-shirt", (*flags, *ESTIMATORS["T-shirt"]))
                profile = out / "profile.pbtxt"
                costs = estimate_profile(first.scheduled, hardware)
                write_files(profile_files(profile, costs), force=True)
            made = session.schedule(name, (*flags, *more), profile)
            used = made.memory_bytes or 0
            prediction = session.predicted(made)
            found[name] = _predicted(policy, prediction, fits=used <= memory_bytes)
    return found


def _predicted(policy: str, prediction: Prediction, *, fits: bool) -> Predicted:
    timeline = prediction.timeline
    communicates = (timeline.stream == Stream.COMMUNICATION) | timeline.sync
    busy_us = float(np.sum(timeline.duration_us[communicates]))
    least_us, most_us = prediction.interval_us
    return Predicted(
        policy=policy,
        step_s=prediction.step_us / 1e6,
        least_s=least_us / 1e6,
        most_s=most_us / 1e6,
        communication=busy_us / prediction.step_us,
        exposed=prediction.exposed_us / prediction.step_us,
        fits=fits,
    )


Found = Mapping[str, Sequence[Mapping[str, Predicted]]]
"""By program: predictions by scheduler, for each policy; one that fits in memory comes first."""


def _change(share: float, decimals: int = 1) -> str:
    return f"{share:+.{decimals}%}".replace("-", "−").replace("%", " %")


def _share(share: float) -> str:
    return f"{share:.1%}".replace("%", " %")


def _table(head: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {head} |"
    yield "|---" * (head.count("|") + 1) + "|"
    for cells in rows:
        yield f"| {' | '.join(cells)} |"


GAIN_HEAD = "program | measured | predicted | with the other policy | sign"


def _gains(rows: Sequence[Published], found: Found) -> Iterator[Sequence[str]]:
    """What PGLE changes, missed signs first."""
    lines = []
    for row in rows:
        if row.estimator != "PGLE":
            continue
        before = next(item for item in rows if item.program == row.program)
        measured = row.step_s / before.step_s - 1
        likely, *others = (_gain(end) for end in found[row.program])
        is_met = likely * measured > 0 and abs(likely) >= LEAST
        other = ", ".join(_change(gain, 2) for gain in others)
        met = "met" if is_met else "**missed**"
        cells = (row.program, _change(measured, 2), _change(likely, 2), other, met)
        lines.append((is_met, -abs(likely - measured), cells))
    yield from (cells for *_, cells in sorted(lines))


def _gain(end: Mapping[str, Predicted]) -> float:
    return end["PGLE"].step_s / end["T-shirt"].step_s - 1


STEP_HEAD = (
    "program | scheduler | policy | measured (s) | predicted (s) | off | "
    "other policy | exposed, measured | predicted | communication, measured | predicted"
)


def _steps(rows: Sequence[Published], found: Found) -> Iterator[Sequence[str]]:
    """All rows, the farthest step first."""
    for row in sorted(rows, key=lambda row: -abs(_off(row, found[row.program][0]))):
        likely, *others = found[row.program]
        item = likely[row.estimator]
        who = (
            row.program,
            row.estimator,
            item.policy if item.fits else f"{item.policy}, does not fit",
        )
        step = (
            f"{row.step_s:.3f}",
            item.range,
            _change(_off(row, likely)),
            ", ".join(_change(_off(row, other)) for other in others),
        )
        shares = (row.exposed, item.exposed, row.communication, item.communication)
        yield (*who, *step, *map(_share, shares))


def _off(row: Published, end: Mapping[str, Predicted]) -> float:
    return end[row.estimator].step_s / row.step_s - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--model", nargs="+", help="by default all")
    parser.add_argument("--kept", action="store_true", help="compute nothing")
    options = parser.parse_args()
    rows = [row for row in published() if row.model in (options.model or POLICIES)]
    programs = {row.program: row for row in rows}
    found: dict[str, list[Mapping[str, Predicted]]] = {}
    for program, row in programs.items():
        places = {
            policy: _place(row, policy, options.output)
            for policy in POLICIES[row.model]
        }
        policies = [
            one for one, at in places.items() if at.exists() or not options.kept
        ]
        ends: list[Mapping[str, Predicted]] = [
            predictions(row, policy, options.output) for policy in policies
        ]
        ends.sort(key=lambda end: not end["T-shirt"].fits)
        found[program] = ends
    print("\n".join(_table(GAIN_HEAD, _gains(rows, found))), end="\n\n")
    print("\n".join(_table(STEP_HEAD, _steps(rows, found))))


if __name__ == "__main__":
    main()
