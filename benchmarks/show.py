"""Showing a profile of a million names, compared with protobuf's own parser.

    python benchmarks/show.py [--names 1000000]

The peer is `google.protobuf.text_format.Parse` of a tenth of the same ``.pbtxt``. It only parses.
The ratio is to ten times what the peer took. CPU seconds of all processes, seconds, and the peak
memory of the largest process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PART = 10  # the peer reads one name in so many

PEER = """
import sys
from google.protobuf import text_format
from pgle.xla.protos.profiled_instructions_pb2 import ProfiledInstructionsProto
text_format.Parse(open(sys.argv[1]).read(), ProfiledInstructionsProto())
"""
PGLE = "import sys; from pgle.cli.main import main; sys.exit(main())"


def measured(code: str, *arguments: str | Path) -> tuple[float, float, float]:
    """Return CPU seconds, seconds, and peak memory in MiB of a Python child that must succeed."""
    began = time.monotonic()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    child = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, used = os.wait4(child.pid, 0)
    assert status == 0, arguments
    return (
        used.ru_utime + used.ru_stime,
        time.monotonic() - began,
        used.ru_maxrss / 1024,
    )


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", type=int, default=1_000_000)
    names = parser.parse_args().names
    with tempfile.TemporaryDirectory() as folder:
        many, tenth = Path(folder, "many.pbtxt"), Path(folder, "tenth.pbtxt")
        lines = [
            f'costs {{ name: "fusion.{at}" cost_us: {at % 977}.5 }}\n'
            for at in range(names)
        ]
        many.write_text("".join(lines))
        tenth.write_text("".join(lines[::PART]))
        peer_s = measured(PEER, tenth)[0] * PART
        ours_s, wall_s, mib = measured(PGLE, "show", many)
        print(
            f"show of {names:,} names: {ours_s:.1f} CPU-s, {wall_s:.1f} s, {mib:.0f} MiB; "
            f"text_format.Parse: {peer_s:.0f} CPU-s by a tenth; ratio {ours_s / peer_s:.2f}"
        )


if __name__ == "__main__":
    main()
