"""Merging the profiles of a thousand ranks, and showing a profile of a million names, beside protobuf's own parser.

    python benchmarks/merge.py [--ranks 1000] [--names 2500] [--shown 1000000]

Each rank has its own profile with sidecar. The peer is `google.protobuf.text_format.Parse` of a tenth of the same
``.pbtxt``, which neither merges nor reads a sidecar; ratios are to ten times what that took. All of it
takes about two minutes.
CPU seconds of all processes, how long it took, and the peak memory of the largest process.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import repeat
from pathlib import Path

from pgle.costs.profile.files import profile_files
from pgle.costs.profile.value import Cost, CostKind, Profile
from pgle.files import write_files

PART = 10  # of the files or names, the peer reads one in so many
COLLECTIVES, EXECUTIONS = 60, 20
SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h

PEER = """
import sys
from google.protobuf import text_format
from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto
for path in open(sys.argv[1]).read().split():
    text_format.Parse(open(path).read(), ProfiledInstructionsProto())
"""

PGLE = "import sys; from pgle.cli.main import main; sys.exit(main())"


def rank_profile(rank: int, names: int) -> Profile:
    """What converting one rank's trace gives: durations differ by rank."""
    dice = random.Random(rank)
    compute = [
        Cost(f"fusion.{number}", round(dice.uniform(2, 400), 3), kind=CostKind.COMPUTE, opcode="fusion",
             shape=f"bf16[{number % 64},4096]", samples=EXECUTIONS, min_us=1.5, max_us=401.25, spread=0.03125)
        for number in range(names - COLLECTIVES)
    ]  # fmt: skip
    collectives = [
        Cost(f"all-gather-start.{number}", round(dice.uniform(100, 900), 3), kind=CostKind.COLLECTIVE,
             opcode="all-gather", shape="bf16[4096,512]", samples=EXECUTIONS, min_us=100.0, max_us=900.0, spread=0.5)
        for number in range(COLLECTIVES)
    ]  # fmt: skip
    module = {"name": "jit_step", "fingerprints": ["f" * 32], "executions_used": EXECUTIONS, "devices": 1,
              "rank_ids": [rank], "ranks": 0, "collectives": COLLECTIVES}  # fmt: skip
    provenance = {"tool": "pgle", "inputs": [{"name": f"rank{rank}.sqlite"}], "modules": [module]}
    return Profile(tuple(sorted(compute + collectives, key=lambda cost: cost.name)), provenance)


def write_rank(path: Path, names: int) -> None:
    """The files of the rank in a name such as ``rank0007.pbtxt``."""
    write_files(profile_files(path, rank_profile(int(path.stem[4:]), names)))


def measured(code: str, *arguments: str | Path) -> tuple[float, float, float]:
    """CPU seconds, seconds, and peak memory in MiB of a Python child that must succeed, with all that it starts."""
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)  # fmt: skip
    cpu_s, wall_s, most = 0.0, 0.0, 0
    with suppress(ChildProcessError):
        while True:
            pid, status, used = os.wait4(-1, 0)
            if pid == child.pid:
                assert status == 0, (arguments[:3], status)
                wall_s = time.monotonic() - began
            cpu_s, most = cpu_s + used.ru_utime + used.ru_stime, max(most, used.ru_maxrss)
    return cpu_s, wall_s, most / 1024


def main() -> None:
    """Print one line per figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--names", type=int, default=2500)
    parser.add_argument("--shown", type=int, default=1_000_000)
    chosen = parser.parse_args()
    ctypes.CDLL(None).prctl(
        SET_CHILD_SUBREAPER, 1, 0, 0, 0
    )  # processes that our child leaves are ours to wait for
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        paths = [root / f"rank{rank:04}.pbtxt" for rank in range(chosen.ranks)]
        with ProcessPoolExecutor() as processes:
            list(processes.map(write_rank, paths, repeat(chosen.names), chunksize=10))
        many, tenth = root / "many.pbtxt", root / "tenth.pbtxt"
        lines = [
            f'costs {{ name: "fusion.{at}" cost_us: {at % 977}.5 }}\n' for at in range(chosen.shown)
        ]
        many.write_text("".join(lines))
        tenth.write_text("".join(lines[::PART]))
        for what, parts, command in (
            (f"merge of {chosen.ranks} ranks with {chosen.names} names", paths[::PART],
             ("merge", *paths, "-o", root / "merged.pbtxt")),
            (f"show of {chosen.shown} names", [tenth], ("show", many)),
        ):  # fmt: skip
            listed = root / "listed"
            listed.write_text("\n".join(map(str, parts)))
            peer = measured(PEER, listed)[0] * PART
            ours, wall, mib = measured(PGLE, *command)
            print(f"{what}: {ours:.1f} CPU-s, {wall:.1f} s, {mib:.0f} MiB; "
                  f"text_format.Parse: {peer:.0f} CPU-s by a tenth; ratio {ours / peer:.2f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
