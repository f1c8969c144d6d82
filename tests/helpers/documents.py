"""Real JSON outputs of commands, which are held against the schemas in docs/schemas."""

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

PRINTED: dict[str, list[list[str]]] = {
    "verify": [
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
        ["diff", BIG, BF16],
    ],
    "convert": [
        ["convert", PAX[1], "-o", "c.pbtxt"],
    ],
    "carry": [
        ["carry", "pax.pbtxt", "--from", DUMP[1], "--to", DUMP[1], "-o", "c1.pbtxt"],
    ],
    "complete": [
        ["complete", BIG, "--hlo", OLD, "-o", "k3.pbtxt"],
    ],
    "confirm": [
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
        ["ranks", NEW, OLD],
    ],
    "compare": [
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
        ["predict", OLD],
    ],
    "analyze": [
        ["analyze", PAX[1]],
    ],
    "report": [
        ["report", PAX[1]],
    ],
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
            "--hardware",
            "h",
            "--file",
            "h.jsonl",
        ],
    ],
    "doctor": [
        ["doctor", "--python", sys.executable],
    ],
    "init": [
        ["init"],
        ["init", "slurm", "-o", "i"],
        ["init", "make", "-o", "j"],
    ],
    "error": [
        ["compare", "a", "b"],
    ],
}
"""Commands that print each object, without a compilation."""


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
