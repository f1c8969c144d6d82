"""Real JSON outputs of every command, of which the schemas in docs/schemas are made."""

from __future__ import annotations

import io
import json
import os
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from pgle.cli.main import run

ROOT = Path(__file__).parents[2]
T = "testdata"
"""The link that `link_testdata` makes where the commands run: no output depends on where the
checkout is.
"""
BF16, BIG = (
    f"{T}/maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt",
    f"{T}/maxtext_pgle/llama2_70b_bf16_pgle_128vm.pbtxt",
)
NEW, OLD = f"{T}/hlo/jax-0.12.0.1/async", f"{T}/hlo/jax-0.10.2/async"
PAX = [f"{T}/pax_fsdp4/proc0.sqlite", f"{T}/pax_fsdp4/proc3.sqlite"]
DUMP = ["--hlo", f"{T}/pax_fsdp4/proc0/dump"]
MADE = f"{T}/nsys_synthetic/synthetic_cases.sqlite"
XPLANE = f"{T}/jax_xplane/jax08_gemm.xplane.pb"
SELF = f"{sys.executable},{sys.executable}"
"""Two releases of jax that are the same one."""
OVERLAP = ["--", sys.executable, "-m", "pgle.workloads", "overlap", "--compile-only"]
FSDP = [
    "--",
    sys.executable,
    "-m",
    "pgle.workloads",
    "fsdp",
    "--layers",
    "2",
    "--devices",
    "{devices}",
    "--batch",
    "{2*devices}",
]
SIMULATED = ["--capture", "simulated", "--target", "a100", "--devices", "4"]
TRAIN = """
import sys
import jax, jax.numpy as jnp
from jax._src.lib import _profiler
jax.config.update("jax_platforms", "cpu")
if "costs" in sys.argv:
    _profiler.get_fdo_profile = lambda xspace: b"\\n\\x0f\\n\\x05dot.1\\x11\\x00\\x00\\x00\\x00\\x00\\x00\\xf8?"
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.eye(32)
if "ahead" in sys.argv:
    step = step.lower(x).compile()
for number in range(8):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = step(x).block_until_ready()
"""
"""A program for `pgle auto` on CPU devices; their traces give no costs, so with `costs` it puts
some in.
"""
AUTO = ["--", sys.executable, "-c", TRAIN]

# Name of the object → command lines; the last is held against the schema that the others made.
CHEAP: dict[str, list[list[str]]] = {
    "verify": [
        ["verify", BF16, "--hlo", NEW],
        ["verify", "pax.pbtxt", *DUMP],
        ["verify", BIG, "--hlo", OLD],
    ],
    "show": [
        ["show", BF16],
        ["show", "pax.pbtxt"],
        ["show", "made.pbtxt"],
        ["show", MADE],
        ["show", XPLANE],
        ["show", PAX[1]],
        ["show", PAX[0]],
    ],
    "diff": [
        ["diff", BF16, BIG],
        ["diff", "pax.pbtxt", "pax.pbtxt"],
        ["diff", BIG, BF16],
    ],
    "convert": [
        ["convert", *PAX, *DUMP, "-o", "a.pbtxt"],
        ["convert", MADE, "-o", "b.pbtxt"],
        ["convert", PAX[1], "-o", "c.pbtxt"],
    ],
    "carry": [["carry", BF16, "--from", NEW, "--to", OLD, "-o", "c1.pbtxt"]],
    "complete": [
        ["complete", BF16, "--hlo", NEW, "-o", "k1.pbtxt"],
        ["complete", "pax.pbtxt", *DUMP, "--target", "a100", "-o", "k2.pbtxt"],
        ["complete", BIG, "--hlo", OLD, "-o", "k3.pbtxt"],
    ],
    "confirm": [
        ["confirm", f"{T}/maxtext_pgle/llama2_7b_pgle_run.log"],
        *(
            ["confirm", str(path.relative_to(ROOT))]
            for path in sorted((ROOT / "testdata/logs/jax_0.10.2").glob("*.log*"))
        ),
        [
            "confirm",
            str(
                min((ROOT / "testdata/logs/jax_0.12.0.1").glob("*.log*")).relative_to(
                    ROOT
                )
            ),
        ],
    ],
    "ranks": [
        ["ranks", NEW, f"{T}/hlo/jax-0.12.0.1/sync"],
        ["ranks", f"{T}/logs/jax_0.10.2/used.log", f"{T}/logs/jax_0.10.2/empty.log"],
        ["ranks", NEW, OLD],
    ],
    "compare": [
        ["compare", *PAX],
        ["compare", "steps.jsonl", "slower.jsonl", "--launch-spread", "1%"],
        ["compare", "steps.jsonl", "slower.jsonl", "--fail-slower", "4%"],
        [
            "compare",
            "--base",
            "steps.jsonl",
            "--base",
            "slower.jsonl",
            "--new",
            "steps.jsonl",
            "--new",
            "slower.jsonl",
        ],
        ["compare", "steps.jsonl", "slower.jsonl", "--fail-slower", "1%"],
        [
            "compare",
            "slower.jsonl",
            "steps.jsonl",
            "--require-faster",
            "--max-loss-change",
            "5%",
        ],
    ],
    "predict": [
        ["predict", NEW],
        ["predict", f"{T}/pax_fsdp4/proc0/dump", "--profile", "pax.pbtxt"],
        ["predict", f"{T}/pax_fsdp4/proc0/dump"],
        ["predict", OLD],
    ],
    "analyze": [
        ["analyze", *PAX, *DUMP],
        ["analyze", PAX[0], *DUMP, "--against", PAX[1], "--profile", "pax.pbtxt"],
        ["analyze", PAX[0]],
        ["analyze", PAX[1]],
    ],
    "report": [["report", *PAX, *DUMP], ["report", PAX[0]], ["report", PAX[1]]],
    "flags": [
        ["flags", "list", "combine"],
        ["flags", "explain", "xla_gpu_all_gather_combine_threshold_bytes"],
        [
            "flags",
            "lint",
            "--jaxlib",
            "0.10.2",
            "--",
            "--xla_gpu_no_such=1",
            "--xla_dump_to=/d",
        ],
        ["flags", "preset"],
        ["flags", "preset", "fsdp", "--jaxlib", "0.10.2"],
        ["flags", "explain", "xla_gpu_enable_latency_hiding_scheduler"],
    ],
    "history": [
        [
            "history",
            "add",
            "steps.jsonl",
            "--name",
            "a",
            "--commit",
            "c",
            "--file",
            "h.jsonl",
        ],
        [
            "history",
            "add",
            "slower.jsonl",
            "--name",
            "a",
            "--hardware",
            "h",
            "--file",
            "h.jsonl",
        ],
        [
            "history",
            "add",
            "steps.jsonl",
            "--name",
            "a",
            "--hardware",
            "h",
            "--file",
            "h.jsonl",
        ],
    ],
    "doctor": [["doctor"], ["doctor", "--python", sys.executable]],
    "init": [["init"], ["init", "slurm", "-o", "i"], ["init", "make", "-o", "j"]],
    "error": [
        ["show", "nowhere"],
        ["shwo"],
        ["show", "--nonsense"],
        ["compare", "a", "b"],
    ],
}
COMPILED: dict[str, list[list[str]]] = {
    "advise": [
        [
            "advise",
            "--target",
            "a100",
            "--devices",
            "1",
            "--budget",
            budget,
            "--",
            sys.executable,
            str(ROOT / "tests" / "helpers" / "advised_program.py"),
            *more,
        ]
        for budget, *more in (("1",), ("1", "plain"))
    ],
    "auto": [
        ["auto", "--run-dir", "cpu", *AUTO],
        ["auto", "--run-dir", "auto", *AUTO, "costs"],
        ["auto", "--run-dir", "auto", "--force", "--then-nsys", *AUTO, "costs"],
    ],
    "rehearse": [
        ["rehearse", "--target", gpu, "--devices", "4", *OVERLAP]
        for gpu in ("a100", "b200")
    ],
    "releases": [
        ["rehearse", "--jax", SELF, "--target", "a100", "--devices", "4", *OVERLAP]
    ],
    "tune": [
        [
            "tune",
            "--devices",
            "4",
            "--target",
            "a100",
            "--budget",
            "2",
            "-o",
            "tuned",
            *OVERLAP,
        ]
    ],
    "scale": [["scale", "--devices", sizes, *FSDP] for sizes in ("3,8,16", "8,16")],
    "profile": [["profile", "--run-dir", "r", *SIMULATED, *OVERLAP]],
    "baseline": [["perf", "--baseline", "--run-dir", "r", *SIMULATED, *OVERLAP]],
    "perf": [["convert", "r"], ["perf", "--run-dir", "r", *SIMULATED, *OVERLAP]],
    "run": [["run", "--run-dir", "whole", *SIMULATED, *OVERLAP]],
    "proof": [["doctor", "--prove", "--capture", "simulated", "--target", "a100"]],
}


def prepare(folder: Path) -> None:
    """The inputs that the commands name without a folder."""
    link_testdata(folder)
    write_steps(folder)
    produce(["convert", *PAX, *DUMP, "-o", "pax.pbtxt"], folder)
    produce(["convert", MADE, "-o", "made.pbtxt"], folder)


def link_testdata(folder: Path) -> None:
    """Have a folder in which `T` names the recordings."""
    (folder / T).symlink_to(ROOT / T)


def write_steps(folder: Path) -> None:
    """The step times of two runs, the second slower by a twentieth."""
    for name, level in (("steps.jsonl", 0.2), ("slower.jsonl", 0.21)):
        lines = [
            {
                "step": i,
                "step_time_s": level * (1 + 0.001 * (i * 7 % 5)),
                "loss": 3.0 - i / 50,
            }
            for i in range(60)
        ]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def produce(words: list[str], folder: Path) -> dict[str, Any]:
    """What a command prints with ``--json`` in a folder."""
    before = words.index("--") if "--" in words else len(words)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    printed = io.StringIO()
    with chdir(folder), redirect_stdout(printed), redirect_stderr(io.StringIO()):
        run([*words[:before], "--json", *words[before:]])
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found
