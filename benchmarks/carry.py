"""Costs carried from each dump of a program to each other: how much of the time, and what the step
becomes.

    python benchmarks/carry.py RELEASES/fsdp-0.8.3 RELEASES/fsdp-0.10.2 …

Each folder is a dump of one program, named PROGRAM-RELEASE; folders of one program are compared
with each other. No GPU ran them, so costs are estimates and the table judges the matching. Columns:
time of the old module that was carried, time of the new module that it covers, the step predicted
by carried costs over the one by the new module's own. In the last column a measurement is played:
each kind of work (its sizes) takes its estimate times a factor drawn at random, the same in both
modules. What is not carried then keeps its estimate. `--verbose` lists differences.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations
from math import exp
from pathlib import Path

from pgle.costs.estimate.estimate import estimator
from pgle.costs.profile.carry import Carried, Graph, carry, scale_by
from pgle.costs.profile.coverage import estimate_profile
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import CostKind, Origin, Profile
from pgle.schedule.predict import predict
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.hlo.module import Module
from pgle.xla.targets import find_hardware

H100 = find_hardware("h100")
SPREAD = 0.3  # of the logarithm of the factors drawn


def read(folder: Path) -> tuple[Module, LookupTable]:
    """The largest module of a dump, and what XLA looks up for it."""
    dumps = read_dumps([folder])
    final = max(dumps.modules, key=lambda module: len(module.instructions))
    return final, LookupTable(final, dumps.lhs_module(final.name))


def drawn(table: LookupTable) -> Profile:
    """Costs as if measured: estimates times a factor of their own for each kind of work."""
    estimate, graph = estimator(table.module, H100), Graph(table)
    costs = []
    for row in table.rows.values():
        kind = (
            row.opcode
            if row.kind is CostKind.COLLECTIVE
            else str(sorted(map(str, _flat(graph.sizes(row)))))
        )
        factor = exp(random.Random(kind).gauss(0, SPREAD))
        costs.append(row.cost(estimate(row.instruction) * factor, Origin.MEASURED))
    return Profile(tuple(costs))


def _flat(value: object) -> Iterator[object]:
    if isinstance(value, tuple | frozenset):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def differences(carried: Carried, new: LookupTable) -> list[tuple[float, str]]:
    """Microseconds of a step by which each carried cost differs from the new module's own
    estimate.
    """
    estimate = estimator(new.module, H100)
    found = []
    for match in carried.matches:
        row = new.rows[match.name]
        own = estimate(row.instruction)
        off = (match.cost.cost_us - own) * row.executions
        found.append(
            (
                off,
                f"{off:+9.1f} µs  {match.was} → {match.name} ({match.by}, {row.opcode}): {own:.1f} own",
            )
        )
    found += [
        (
            estimate(new.rows[name].instruction) * new.rows[name].executions,
            f"left: {name}",
        )
        for name in carried.left
    ]
    return sorted(found, key=lambda pair: -abs(pair[0]))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    programs: dict[str, dict[str, tuple[Module, LookupTable]]] = defaultdict(dict)
    for folder in options.folders:
        name, _, release = folder.name.rpartition("-")
        programs[name][release] = read(
            folder / "rehearsal/baseline" if (folder / "rehearsal").exists() else folder
        )
    rows = []
    for name, releases in programs.items():
        for one, other in permutations(releases, 2):
            (_, old), (final, new) = releases[one], releases[other]
            own = estimate_profile(new.module, H100)
            carried = carry(
                estimate_profile(old.module, H100), old, new, scale_by(old, new, H100)
            )
            times = {
                key: row.executions * estimator(new.module, H100)(row.instruction)
                for key, row in new.rows.items()
            }
            covered = sum(times[match.name] for match in carried.matches) / sum(
                times.values()
            )
            step = (
                predict(final, carried.profile, H100).step_us
                / predict(final, own, H100).step_us
                - 1
            )
            brought = carry(drawn(old), old, new, scale_by(old, new, H100)).profile
            played = (
                predict(final, brought, H100).step_us
                / predict(final, drawn(new), H100).step_us
                - 1
            )
            counts = len(carried.matches), len(new.rows)
            rows.append(
                (
                    abs(played),
                    name,
                    one,
                    other,
                    *counts,
                    carried.share,
                    covered,
                    step,
                    played,
                )
            )
            if options.verbose:
                print(
                    f"{name} {one} → {other}: {carried.share:.1%} {covered:.1%} {step:+.2%}"
                )
                print(
                    "\n".join(
                        f"    {text}"
                        for off, text in differences(carried, new)[:8]
                        if abs(off) > 1
                    )
                )
    print(
        "| program | from → to | costs carried, of the new module's | time carried | covered | step | costs drawn |"
    )
    print("|---|---|---|---|---|---|---|")
    for _, name, one, other, matched, wanted, share, covered, *steps in sorted(
        rows, reverse=True
    ):
        shares = f"{share:.1%} | {covered:.1%}".replace("%", " %")
        changes = " | ".join(
            f"{step:+.1%}".replace("-", "−").replace("%", " %") for step in steps
        )
        print(
            f"| {name} | {one} → {other} | {matched} of {wanted} | {shares} | {changes} |"
        )
    within = [sum(abs(float(row[place])) <= 0.01 for row in rows) for place in (8, 9)]
    print(
        f"\n{within[0]} of {len(rows)} steps within 1 %; with costs drawn {within[1]}"
    )


if __name__ == "__main__":
    main()
