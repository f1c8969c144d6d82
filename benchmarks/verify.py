"""Verify a profile of every second fusion against HLO text of 200,000 to 1,000,000 instructions.

    python benchmarks/verify.py [--instructions 1000000]

Processor seconds and peak memory of the whole command, and per instruction, which says whether time
grows linearly. The peer is XLA's own C++ parser (jaxlib's `hlo_module_from_text`), which only reads
the text.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ARRAY = "f32[1024,512]{1,0}"
METADATA = 'metadata={{op_name="jit(step)/layer_{0}/tanh" source_file="model.py" source_line={0}}}'
PARSE = "import sys; from jaxlib import _hlo; _hlo.hlo_module_from_text(open(sys.argv[1]).read())"


def hlo(fusions: int) -> Iterator[str]:
    """A module of six instructions for each fusion: its body, itself and a bitcast; all-reduces
    between them.
    """
    yield "HloModule jit_step, is_scheduled=true, num_partitions=8\n\n"
    yield "%sum (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
    yield "  ROOT %both = f32[] add(%a, %b)\n}\n\n"
    for i in range(fusions):
        where = METADATA.format(i % 997)
        yield f"%body.{i} (x.{i}: f32[1024,512], y.{i}: f32[1024,512]) -> f32[1024,512] {{\n"
        yield f"  %x.{i} = {ARRAY} parameter(0)\n  %y.{i} = {ARRAY} parameter(1)\n"
        yield f"  %add.{i} = {ARRAY} add(%x.{i}, %y.{i}), {where}\n"
        yield f"  ROOT %tanh.{i} = {ARRAY} tanh(%add.{i}), {where}\n}}\n\n"
    yield f"ENTRY %main (p: f32[1024,512]) -> f32[1024,512] {{\n  %p = {ARRAY} parameter(0)\n"
    last = "p"
    for i in range(fusions):
        where = METADATA.format(i % 997)
        yield f"  %fusion.{i} = {ARRAY} fusion(%{last}, %p), kind=kLoop, calls=%body.{i}, {where}\n"
        yield f"  %bitcast.{i} = f32[512,1024]{{0,1}} bitcast(%fusion.{i}), {where}\n"
        last = f"fusion.{i}"
        if i % 20 == 19:
            yield f"  %all-reduce-start.{i} = {ARRAY} all-reduce-start(%{last}), channel_id={i}, "
            yield f"replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%sum, {where}\n"
            last = f"all-reduce-done.{i}"
            yield f"  %{last} = {ARRAY} all-reduce-done(%all-reduce-start.{i})\n"
    yield f"  ROOT %out = {ARRAY} add(%{last}, %p)\n}}\n"


def costs(fusions: int) -> Iterator[str]:
    """Costs of every second fusion and of all collectives."""
    for i in range(0, fusions, 2):
        yield f'costs {{ name: "fusion.{i}" cost_us: {3 + i % 7} }}\n'
    for i in range(19, fusions, 20):
        yield f'costs {{ name: "all-reduce-start.{i}" cost_us: 50 }}\n'


def run(arguments: Sequence[str | Path]) -> tuple[float, float]:
    """Processor seconds and peak MiB of one process."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 1):
        raise SystemExit(f"{arguments}: exit code {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Print a line per size."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--instructions", type=int, default=1_000_000)
    largest = parser.parse_args().instructions
    print("instructions  verify s  µs each  peak MiB  XLA parses s  ratio")
    with TemporaryDirectory() as folder:
        for count in (largest // 5, largest // 2, largest):
            dump = (
                Path(folder) / "module_0001.jit_step.sm_8.0_gpu_after_optimizations.txt"
            )
            profile = Path(folder) / "profile.pbtxt"
            with dump.open("w") as stream:
                stream.writelines(hlo(count // 6))
            with profile.open("w") as stream:
                stream.writelines(costs(count // 6))
            seconds, peak = run(["-m", "pgle", "verify", profile, "--hlo", dump])
            parsing, _ = run(["-c", PARSE, dump])
            each = 1e6 * seconds / count
            print(
                f"{count:12,}{seconds:10.1f}{each:9.1f}{peak:10.0f}{parsing:14.1f}{seconds / parsing:7.2f}"
            )


if __name__ == "__main__":
    main()
