"""Archives that become 3 GB, files of zeros: how soon and in how much memory are they refused?
Goal: 2 s, 300 MiB.
"""

from __future__ import annotations

import gzip
import lzma
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PROFILE = (
    Path(__file__).parent.parent
    / "testdata/maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
)
SIZE_MIB = 3 * 1024
ZEROS_GB = {
    "step.xplane.pb": 6,
    "report.sqlite": 6,
    "module.hlo.txt": 2,
    "module.hlo.pb": 2,
    "steps.jsonl": 6,
}
"""Sparse files; HLO of more than 2 GiB is refused by its size."""
COMMANDS = {
    "module.hlo.pb.xz": ["verify", str(PROFILE), "--hlo", "BOMB"],
    "steps.jsonl.gz": ["compare", "BOMB", "BOMB"],
    "run.log.gz": ["confirm", "BOMB"],
    "step.xplane.pb.gz": ["convert", "BOMB", "-o", "OUT.pbtxt"],
    "step.xplane.pb": ["convert", "BOMB", "-o", "OUT.pbtxt"],
    "report.sqlite": ["convert", "BOMB", "-o", "OUT.pbtxt"],
    "module.hlo.txt": ["verify", str(PROFILE), "--hlo", "BOMB"],
    "module.hlo.pb": ["verify", str(PROFILE), "--hlo", "BOMB"],
    "steps.jsonl": ["compare", "BOMB", "BOMB"],
}


def main() -> None:
    with TemporaryDirectory() as folder:
        for name, words in COMMANDS.items():
            bomb = Path(folder, name)
            if name in ZEROS_GB:
                bomb.touch()
                os.truncate(bomb, ZEROS_GB[name] * 10**9)
            else:
                with (
                    lzma.open(bomb, "wb", preset=0)
                    if bomb.suffix == ".xz"
                    else gzip.open(bomb, "wb", 1) as file
                ):
                    for _ in range(SIZE_MIB):
                        file.write(
                            b"\n" * (1 << 20)
                        )  # also the first byte of any protocol buffer
            command = [
                sys.executable,
                "-m",
                "pgle",
                *(word.replace("BOMB", str(bomb)) for word in words),
            ]
            child = os.posix_spawn(
                sys.executable,
                [word.replace("OUT", f"{folder}/x") for word in command],
                os.environ,
            )
            _, status, used = os.wait4(child, 0)
            seconds, code = (
                used.ru_utime + used.ru_stime,
                os.waitstatus_to_exitcode(status),
            )
            size = bomb.stat().st_size >> 10
            print(
                f"{words[0]:8} {name:18} {size:6,} KiB  exit {code}  {seconds:.2f} CPU-s  {used.ru_maxrss >> 10} MiB"
            )
            bomb.unlink()


if __name__ == "__main__":
    main()
