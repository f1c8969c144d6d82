"""What a compilation without a device makes of all that the other parts measured, on the same
jaxlib.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.meters import failure, rehearsed
from benchmarks.gpu.results import Results, Row, read_archive

PARTS = ("steps", "kernels")
SOURCE = ".mlir"


def run(bench: Bench, results: Results) -> None:
    """A row for each module that another part recorded."""
    from pgle.run.compiler.compile import Compiler

    def row_of(module: Path) -> tuple[Row, dict[str, bytes]]:
        name = module.name.removesuffix(SOURCE)
        try:
            row, scheduled = rehearsed(name, module, compiler, bench.target, bench.work)
        except Exception as error:
            return Row(name, "rehearsal", error=failure(error)), {}
        return row, {f"{name}.hlo.pb": scheduled}

    with Compiler() as compiler, ThreadPoolExecutor() as pool:
        for row, recordings in pool.map(row_of, sources(bench)):
            results.add(row, recordings)


def sources(bench: Bench) -> Iterator[Path]:
    """The recorded modules as files, each once."""
    seen: set[str] = set()
    for part in PARTS:
        archive = bench.out / f"{part}.zip"
        if not archive.is_file():
            continue
        for name, data in read_archive(archive).recordings.items():
            if name.endswith(SOURCE) and name not in seen:
                seen.add(name)
                path = bench.work / name
                path.write_bytes(data)
                yield path
