"""Archives that become 3 GB: how soon and with how much memory they are refused. Goal: 2 s and 300 MiB."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PROFILE = Path(__file__).parent.parent / "testdata/maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
SIZE_MIB = 3 * 1024
COMMANDS = {
    "module.hlo.pb.xz": ["verify", str(PROFILE), "--hlo", "BOMB"],
    "steps.jsonl.gz": ["compare", "BOMB", "BOMB"],
    "run.log.gz": ["confirm", "BOMB"],
    "step.xplane.pb.gz": ["convert", "BOMB", "-o", "OUT.pbtxt"],
}


def main() -> None:
    with TemporaryDirectory() as folder:
        for name, words in COMMANDS.items():
            bomb = Path(folder, name)
            with lzma.open(bomb, "wb", preset=0) if bomb.suffix == ".xz" else gzip.open(bomb, "wb", 1) as file:
                for _ in range(SIZE_MIB):
                    file.write(bytes(1 << 20))
            command = [sys.executable, "-m", "pgle", *(word.replace("BOMB", str(bomb)) for word in words)]
            child = os.posix_spawn(sys.executable, [word.replace("OUT", f"{folder}/x") for word in command], os.environ)
            _, status, used = os.wait4(child, 0)
            seconds, code = used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status)
            size = bomb.stat().st_size >> 10
            print(f"{words[0]:8} {name:18} {size:6,} KiB  exit {code}  {seconds:.2f} CPU-s  {used.ru_maxrss >> 10} MiB")
            bomb.unlink()


if __name__ == "__main__":
    main()
