"""Turn XLA's own performance tables into the compact form that pgle ships.

python scripts/record_perf_tables.py COLLECTIVES.txtpb MATMULS.txtpb

The inputs are `xla/service/gpu/model/default_{collective,matmul}_perf_table.txtpb` of openxla/xla,
plain or ``.xz``. Writes `pgle/xla/data/perf_tables/{collectives,matmuls}.tsv`: microseconds of each
collective, teraflops of each matmul. Left out: entries faster than the GPU's peak.
"""

from __future__ import annotations

import lzma
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from pgle.xla.targets import TABLE

OUT = Path(__file__).parents[1] / "pgle/xla/data/perf_tables"
GPUS = {
    "sm_90": "h100-sxm",
    "sm_100_B200": "b200",
    "sm_100_GB200": "gb200",
    "sm_103": "gb300",
    "gfx950": "mi350x",
}
DTYPES = {"bf16xbf16->bf16": "bf16", "f32xf32->f32": "f32"}
FP8 = "f8e4m3fnxf8e4m3fn->bf16"


def read(path: str) -> list[tuple[str, Any]]:
    """A text proto as nested lists of (field, value)."""
    data = Path(path).read_bytes()
    text = (lzma.decompress(data) if path.endswith(".xz") else data).decode()
    words = re.findall(
        r'"(?:[^"\\]|\\.)*"|[{}]|[\w.+-]+|:', re.sub(r"(?m)#.*$", "", text)
    )
    position = 0

    def message() -> list[tuple[str, Any]]:
        nonlocal position
        fields: list[tuple[str, Any]] = []
        while position < len(words) and words[position] != "}":
            name, position = words[position], position + 1
            position += words[position] == ":"
            value: Any = words[position].strip('"')
            position += 1
            if value == "{":
                value, position = message(), position + 1
            fields.append((name, value))
        return fields

    return message()


def pattern(pairs: list[tuple[int, int]]) -> str:
    """How the pairs of a collective-permute meet: all in a ring, two by two, or in one direction
    only.
    """
    if all((target, source) in pairs for source, target in pairs):
        return "permute-swap"
    return (
        "permute-ring"
        if {source for source, _ in pairs} == {target for _, target in pairs}
        else "permute-one-way"
    )


def collectives(path: str) -> list[str]:
    """Rows ``gpu kind group bytes us``; bytes as nccl-tests count them: what is gathered, reduced
    or scattered.
    """
    found: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for _, entry in read(path):
        gpu = GPUS.get(dict(entry)["key"])
        for _, profile in dict(entry)["value"] if gpu else ():
            fields = dict(profile)
            instruction = fields["instruction"]
            kind, shape = dict(instruction)["opcode"], dict(instruction)["shape"]
            if (
                dict(shape)["element_type"] == "TUPLE"
                or "network_throughput_bytes_per_sec" not in fields
            ):
                continue
            size = 4 * int(dict(shape)["dimensions"])
            if kind == "collective-permute":
                ends = [
                    dict(value)
                    for name, value in instruction
                    if name == "source_target_pairs"
                ]
                pairs = [
                    (int(pair.get("source", 0)), int(pair.get("target", 0)))
                    for pair in ends
                ]
                kind, group = pattern(pairs), 2
            else:
                group = int(
                    dict(dict(instruction)["iota_collective_device_list"])[
                        "num_devices_per_group"
                    ]
                )
            size *= group if kind == "reduce-scatter" else 1
            found[str(gpu), kind, group, size].append(
                size / int(fields["network_throughput_bytes_per_sec"]) * 1e6
            )
    rows = [(*key, f"{median(times):.2f}") for key, times in sorted(found.items())]
    return ["\t".join(map(str, row)) for row in rows]


def matmuls(path: str) -> list[str]:
    """Rows ``gpu dtype b m n k tflops``."""
    rows = []
    for _, entry in read(path):
        gpu = GPUS.get(dict(entry)["key"])
        for _, item in dict(entry)["value"] if gpu else ():
            b, m, n, k = (int(dict(item)[name]) for name in "bmnk")
            for name, value in item:
                if name != "flops":
                    continue
                dtype, tflops = dict(value)["key"], int(dict(value)["value"]) / 1e12
                dtype = "f8" if dtype == FP8 else DTYPES.get(dtype, "")
                peak = TABLE[str(gpu)].peak_tflops({"f8": "f8e4m3fn"}.get(dtype, dtype))
                if dtype and tflops < peak:
                    rows.append((str(gpu), dtype, b, m, n, k, f"{tflops:.2f}"))
    return ["\t".join(map(str, row)) for row in sorted(rows)]


if __name__ == "__main__":
    for name, header, lines in (
        ("collectives", "gpu\tkind\tgroup\tbytes\tus", collectives(sys.argv[1])),
        ("matmuls", "gpu\tdtype\tb\tm\tn\tk\ttflops", matmuls(sys.argv[2])),
    ):
        (OUT / f"{name}.tsv").write_text("\n".join([header, *lines]) + "\n")
        print(f"{name}: {len(lines)} rows")
