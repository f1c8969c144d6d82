"""Costs carried from each dump of a program to each other: how much of the time, and what the step becomes.

    python benchmarks/carry.py RELEASES/fsdp-0.8.3 RELEASES/fsdp-0.10.2 …

Each folder is a dump of one program, named PROGRAM-RELEASE; folders of one program are compared with each other. The
costs are estimates for the old module, so the table judges the matching, not the costs. Rows: time of the old module
that was carried, time of the new module that it covers, the step predicted by carried costs over the one by the new
module's own. `--verbose` lists what makes the difference.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from itertools import permutations
from pathlib import Path

from pgle.costs.estimate.estimate import estimate_profile, estimator
from pgle.costs.lookup.table import LookupTable
from pgle.costs.profile.carry import Carried, carry, scale_by
from pgle.schedule.predict import predict
from pgle.xla.hardware import find_hardware
from pgle.xla.hlo.dumps import read_dumps
from pgle.xla.hlo.module import Module

H100 = find_hardware("h100")


def read(folder: Path) -> tuple[Module, LookupTable]:
    """The largest module of a dump, and what XLA looks up for it."""
    dumps = read_dumps([folder])
    final = max(dumps.modules, key=lambda module: len(module.instructions))
    return final, LookupTable(final, dumps.lhs_module(final.name))


def differences(carried: Carried, new: LookupTable) -> list[tuple[float, str]]:
    """Microseconds of a step by which each carried cost differs from the new module's own estimate."""
    estimate = estimator(new.module, H100)
    found = []
    for match in carried.matches:
        row = new.rows[match.name]
        own = estimate(row.instruction)
        off = (match.cost.cost_us - own) * row.executions
        found.append((off, f"{off:+9.1f} µs  {match.was} → {match.name} ({match.by}, {row.opcode}): {own:.1f} own"))
    found += [
        (estimate(new.rows[name].instruction) * new.rows[name].executions, f"left: {name}") for name in carried.left
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
        programs[name][release] = read(folder / "rehearsal/baseline" if (folder / "rehearsal").exists() else folder)
    rows = []
    for name, releases in programs.items():
        for one, other in permutations(releases, 2):
            (_, old), (final, new) = releases[one], releases[other]
            own = estimate_profile(new.module, H100)
            carried = carry(estimate_profile(old.module, H100), old, new, scale_by(old, new, H100))
            times = {
                key: row.executions * estimator(new.module, H100)(row.instruction) for key, row in new.rows.items()
            }
            covered = sum(times[match.name] for match in carried.matches) / sum(times.values())
            step = predict(final, carried.profile, H100).step_us / predict(final, own, H100).step_us - 1
            rows.append(
                (abs(step), name, one, other, len(carried.matches), len(new.rows), carried.share, covered, step)
            )
            if options.verbose:
                print(f"{name} {one} → {other}: {carried.share:.1%} {covered:.1%} {step:+.2%}")
                print("\n".join(f"    {text}" for off, text in differences(carried, new)[:8] if abs(off) > 1))
    print("| program | from → to | costs carried, of the new module's | time carried | covered | step |")
    print("|---|---|---|---|---|---|")
    for _, name, one, other, matched, wanted, share, covered, step in sorted(rows, reverse=True):
        print(f"| {name} | {one} → {other} | {matched} of {wanted} | {share:.1%} | {covered:.1%} | {step:+.1%} |")
    within = sum(row[0] <= 0.01 for row in rows)
    print(f"\n{within} of {len(rows)} steps within 1 %; carried {min(row[6] for row in rows):.1%} of the time or more")


if __name__ == "__main__":
    main()
