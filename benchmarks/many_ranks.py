"""Traces of 2,000 ranks as one profile: is the time linear in ranks, and does a Dask cluster write
the same bytes?

    python benchmarks/many_ranks.py [--ranks 2000] [--dask]

Rank files are copies of one export of `testdata/pax_fsdp4` with few instructions, each with a
device number and durations of its own. All name their process alike, as containers do. The ratio is
processor time of reading and converting them one after the other, against a quarter of them: 4 is
linear. With `--dask` two workers convert them once more, and one is killed when a third is read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests/helpers"))

from nsys_export import write_nsys_sqlite  # noqa: E402

import pgle  # noqa: E402
from pgle.requests.profiles import Convert  # noqa: E402
from pgle.run import convert as converting  # noqa: E402
from pgle.run.inputs import traces  # noqa: E402
from pgle.trace.nsys.read import read_nsys  # noqa: E402
from pgle.trace.table import ROW_COLUMNS, Device  # noqa: E402

INSTRUCTIONS = 24
SCHEDULER, WORKERS = 18787, 2


def template(path: Path) -> None:
    """The export of one rank: the main module, its first instructions."""
    trace = read_nsys(ROOT / "testdata/pax_fsdp4/proc0.sqlite")
    main = int(np.bincount(trace.module).argmax())
    names = np.unique(trace.instruction[trace.module == main])[:INSTRUCTIONS]
    keep = (trace.module == main) & np.isin(trace.instruction, names)
    columns = {name: getattr(trace, name)[keep] for name in ROW_COLUMNS}
    columns["instruction"] = np.searchsorted(names, columns["instruction"])
    columns["module"] = np.zeros(int(keep.sum()), np.int32)
    few = replace(
        trace,
        **columns,
        modules=(trace.modules[main],),
        instructions=tuple(trace.instructions[name] for name in names),
        devices=(Device("host:100", 0, 0),),
        other=trace.other.of_rows(np.arange(0)),
        unresolved=(),
        recordings={},
        compiling={},
        kernels={},
        warnings=(),
    )
    write_nsys_sqlite(few, path)


def rank_files(folder: Path, ranks: int) -> list[Path]:
    """One export for each rank."""
    first = folder / "template.sqlite"
    template(first)
    found = []
    for rank in range(ranks):
        path = folder / f"rank{rank:05}.sqlite"
        shutil.copyfile(first, path)
        with closing(sqlite3.connect(path)) as database, database:
            number = f"#global={rank},local=0,process=0,slice=0#"
            database.execute("PRAGMA synchronous = OFF")
            database.execute(
                "UPDATE TARGET_INFO_NVTX_CUDA_DEVICE SET name = ?", (f"Xla:{number}",)
            )
            database.execute(
                "UPDATE StringIds SET value = ? WHERE value LIKE 'XlaLauncher:%'",
                (f"XlaLauncher:{number}",),
            )
            database.execute(
                "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + ?",
                (rank * 7919 % 500,),
            )
        found.append(path)
    return found


def processor_s(files: list[Path], out: Path) -> float:
    """Processor time of this process, which reads one file after the other."""
    traces.PARALLEL_BYTES = sys.maxsize
    began = time.process_time()
    converting.convert(Convert(tuple(files), out, force=True))
    return time.process_time() - began


@contextmanager
def cluster(folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The workers of a new cluster, without nannies: one that is killed stays dead."""
    started: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, "PYTHONPATH": str(Path(pgle.__file__).parents[1])}

    def start(*words: str) -> None:
        with (folder / f"dask{len(started)}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "distributed.cli." + words[0], *words[1:]],
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
            )

    try:
        start("dask_scheduler", "--port", str(SCHEDULER), "--no-dashboard")
        for _ in range(WORKERS):
            address = f"tcp://127.0.0.1:{SCHEDULER}"
            start("dask_worker", address, "--nthreads", "1", "--no-nanny")
        from distributed import Client

        with Client(f"tcp://127.0.0.1:{SCHEDULER}", timeout=60) as client:
            client.wait_for_workers(WORKERS, timeout=60)
        yield started[1:]
    finally:
        for child in started:
            child.kill()
            child.wait()


def by_dask(files: list[Path], out: Path, folder: Path) -> tuple[float, int]:
    """Convert with two workers, of which one is killed; seconds, and files read by then."""
    killed = 0

    with cluster(folder) as workers:

        def on_read(done: int, of: int) -> None:
            nonlocal killed
            if not killed and 3 * done >= of:
                workers[0].kill()
                killed = done

        began = time.monotonic()
        where = f"dask://127.0.0.1:{SCHEDULER}"
        request = Convert(tuple(files), out, force=True, executor=where)
        converting.convert(request, progress=on_read)
        return time.monotonic() - began, killed


def contents(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(out.parent.glob(f"{out.name}*"))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--ranks", type=int, default=2000)
    options.add_argument("--dask", action="store_true")
    asked = options.parse_args()
    with TemporaryDirectory(prefix="pgle-ranks-") as place:
        folder = Path(place)
        files = rank_files(folder, asked.ranks)
        out = folder / "profile.pbtxt"
        few_s = processor_s(files[: asked.ranks // 4], out)
        all_s = processor_s(files, out)
        print(
            f"{len(files) // 4:,} ranks {few_s:.1f} s, {len(files):,} ranks {all_s:.1f} s of "
            f"processor time: {all_s / few_s:.2f} × (linear: 4)"
        )
        if not asked.dask:
            return
        here = contents(out)
        took_s, killed = by_dask(files, out, folder)
        same = "the same bytes" if contents(out) == here else "OTHER BYTES"
        print(
            f"two Dask workers, one killed after {killed:,} files: {took_s:.1f} s, {same} "
            f"in {len(here)} files"
        )


if __name__ == "__main__":
    main()
