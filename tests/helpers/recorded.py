"""Commands that compile, with schedules of testdata/hlo in the compiler's place: all of them but
XLA, at once.

``python recorded.py ARGUMENTS`` is `pgle ARGUMENTS` so.
"""

from __future__ import annotations

import lzma
import sys
from pathlib import Path
from typing import Any

from pgle.cli.main import run
from pgle.run.compiler.compile import PROFILE_FLAG, Compiler, CompileRequest
from pgle.run.compiler.worker import LOG, SCHEDULED

TESTDATA = Path(__file__).parents[2] / "testdata"
JAXLIB = "0.12.0.1"
PROGRAM = str(TESTDATA / f"stablehlo/fsdp_mlp_jax_{JAXLIB}.mlir")

MEMORY = b"\x0a\x0e\x08\x80\x80\x80\x10\x1a\x07\x08\x01\x10\x80\x80\x80\x08"
"""XLA's memory report: one space of 32 MiB, whose last allocation, that of temporary buffers, takes
16.
"""


def answer(
    _: Compiler, request: CompileRequest, folder: Path, _unscheduled: object
) -> dict[str, Any]:
    """What the compiler's process says, and the files that it leaves: collectives are asynchronous
    under a profile or under flags of a trial, and it is the log alone that tells of the profile.
    """
    is_plain = folder.name == "default"
    is_trial = any("combine" in flag for flag in request.flags)
    is_profiled = request.profile is not None or any(
        flag.startswith(PROFILE_FLAG) for flag in request.flags
    )
    is_better = is_trial or (is_profiled and folder.name in ("profiled", "hlo"))
    schedule = "off" if is_plain else "async" if is_better else "sync"
    for kept in (TESTDATA / f"hlo/jax-{JAXLIB}" / schedule).glob("*.pb.xz"):
        if not (is_profiled and ".schedule." in kept.name):
            (folder / kept.stem).write_bytes(lzma.decompress(kept.read_bytes()))
    after = next(folder.glob(f"*{SCHEDULED}"))
    after.with_name(
        f"{after.name.removesuffix('.hlo.pb')}-memory-usage-report.pb"
    ).write_bytes(MEMORY)
    log = (
        TESTDATA
        / f"logs/jax_{JAXLIB}"
        / ("used.log" if is_profiled else "no_profile.log")
    )
    (folder / LOG).write_text(log.read_text().replace("jit_train_step", "jit_step"))
    said = {"module_name": "jit_step", "num_devices": 4, "jaxlib": JAXLIB}
    return said | {"compile_s": 1.5}


if __name__ == "__main__":
    Compiler._ask = answer  # type: ignore[method-assign]
    sys.exit(run(sys.argv[1:]))
