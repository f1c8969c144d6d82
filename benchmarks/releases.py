"""What releases of jax make of public programs: exact facts, and the step by both compilations.

    python benchmarks/releases.py MODULES -o FOLDER --python env-0.10.1/bin/python ...
    python benchmarks/releases.py MODULES -o FOLDER --page docs/evidence/releases.md

MODULES is a folder with the files of openxla/xla `xla/tools/benchmarks/hlo` that `PROGRAMS` names.
Each program is compiled by every PYTHON, with each set of `FLAGS`, and each release is compared
with the one before it. A cell (program and flags) that is in FOLDER is not computed again: repeat
the command to continue. --page replaces the end of a page, below its mark.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from pgle.errors import UserError
from pgle.files import write_files
from pgle.report import text
from pgle.report.page import figures
from pgle.report.releases import releases_document
from pgle.requests.predictions import Rehearse
from pgle.run.environments import release_of
from pgle.run.rehearse_program import prepared
from pgle.run.releases import Interpreter, ReleasesResult, compiled_by, upgrade

PROGRAMS = (
    ("70b_fp8_16x8", "hlo_llama31_70b_fp8_16x8.hlo.xz", "h100"),
    ("405b_bf16_16x8", "hlo_llama31_405b_bf16_16x8.hlo.xz", "h100"),
    ("8b_cp_bf16_1x4", "hlo_llama3_8b_cp_bf16_1x4.hlo.xz", "h100"),
    ("70b_bf16_16x8", "hlo_llama31_70b_bf16_16x8.hlo.xz", "h100"),
    ("405b_fp8_16x8", "hlo_llama31_405b_fp8_16x8.hlo.xz", "b200"),
)
"""Name, file and GPU. XLA is told no hosts, as `pgle rehearse` does without --topology."""
FLAGS = {
    "none": (),
    "pipelining": (
        "--xla_gpu_enable_pipelined_all_gather=true",
        "--xla_gpu_enable_pipelined_reduce_scatter=true",
        "--xla_gpu_enable_pipelined_all_reduce=true",
        "--xla_gpu_enable_while_loop_double_buffering=true",
    ),
}
"""NVIDIA's pipelining (NVIDIA/JAX-Toolbox, docs/GPU_performance.md)."""


HEAD = "| program | flags | from → to | step | control | so | with a profile | exact differences |"
MARK = "<!-- below: benchmarks/releases.py -->"


def main() -> None:
    """Compute the cells that are missing, then write the table of all that are there."""
    options = _parser().parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    by = [Interpreter(python, release_of(python)) for python in options.python]
    for program in PROGRAMS:
        for flags in FLAGS:
            cell = f"{program[0]}.{flags}"
            place = options.output / f"{cell}.json"
            is_wanted = not options.cell or cell in options.cell
            if by and is_wanted and not place.exists():
                _cell(options.modules, program, flags, by, place)
    if options.page:
        kept = options.page.read_text().partition(MARK)[0]
        lines = "\n".join(_table(options.output))
        write_files({options.page: f"{kept}{MARK}\n\n{lines}\n"}, force=True)


def _table(folder: Path) -> Iterator[str]:
    """A row for each upgrade of each cell, and the cells that are missing."""
    missing = []
    yield HEAD
    yield "|---" * (HEAD.count("|") - 1) + "|"
    for program in PROGRAMS:
        for flags in FLAGS:
            place = folder / f"{program[0]}.{flags}.json"
            if not place.exists():
                missing.append(f"{program[0]} with {flags}")
                continue
            record = json.loads(place.read_text())
            for item in record["upgrades"]:
                yield _row(record, item)
            for release, why in record["failed"].items():
                cause = why.partition("; the whole log")[0]  # without a folder of here
                yield f"| {program[0]} | {flags} | {release} | {cause} | | | | |"
    yield ""
    yield f"Not run: {', '.join(missing) or 'nothing'}."


def _row(record: dict[str, Any], item: dict[str, Any]) -> str:
    step = item["step"]
    what = (record["program"], record["set"], f"{item['from']} → {item['to']}")
    sides = (_longer(step["first_share"]), _longer(step["control_share"]))
    answers = (_settled(step), _settled(item["profiled"]))
    cells = (*what, *sides, *answers, "; ".join(_exact(item)))
    return f"| {' | '.join(cells)} |"


def _longer(share: float | None) -> str:
    """A share that is saved, as the change of the step."""
    return figures.change(None if share is None else -share)


def _settled(found: dict[str, Any]) -> str:
    return "depends" if found["depends"] else _longer(found["share"])


def _exact(item: dict[str, Any]) -> Iterator[str]:
    exact = item["exact"]
    for kind, (old, new) in exact["by_kind"].items():
        yield (
            f"{kind} {old['count']} ({old['asynchronous']} asynchronous) → "
            f"{new['count']} ({new['asynchronous']})"
        )
    for types, (before, after) in exact["products"].items():
        yield f"{types} {before} → {after}"
    if exact["order"] is not None:
        yield f"order from no. {exact['order']['position']}"
    control = item["control"]
    if control is not None and control["order"] is not None:
        yield f"order in the control from no. {control['order']['position']}"
    yield f"{figures.share(item['carried_share'])} of a profile carries"


def _cell(
    modules: Path,
    program: tuple[str, str, str],
    flags: str,
    by: list[Interpreter],
    place: Path,
) -> None:
    name, file, target = program
    out = place.with_suffix("")
    shutil.rmtree(out, ignore_errors=True)
    asked = Rehearse(
        step=(str(modules / file),),
        target=target,
        flags=FLAGS[flags],
        output=out,
        cached=False,
    )
    before = _cpu_s()
    made = []
    failed: dict[str, str] = {}
    with prepared(asked) as (_, request):
        for one in by:
            try:
                made.append(compiled_by(one, request))
            except UserError as error:
                failed[one.release] = str(error)
        upgrades = tuple(upgrade(old, new) for old, new in pairwise(made))
        found = ReleasesResult(request, "", tuple(made), upgrades)
        record: dict[str, Any] = {
            "program": name,
            "set": flags,
            "cpu_s": _cpu_s() - before,
            "failed": failed,
            **text.plain(releases_document(found)),
        }
    write_files({place: text.as_json("releases-cell", record)})
    print(name, flags, record["verdict"], f"{record['cpu_s']:.0f} CPU-s", flush=True)


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(item.ru_utime + item.ru_stime for item in used)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("modules", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--python", nargs="+", default=[])
    parser.add_argument("--cell", nargs="+", default=[], help="PROGRAM.FLAGS")
    parser.add_argument("--page", type=Path, help="the page that ends in the table")
    return parser


if __name__ == "__main__":
    main()
