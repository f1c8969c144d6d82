"""Checks a built wheel before it is published: what it holds, and what it answers where it is
installed.

    uv build && python scripts/check_wheel.py dist/*.whl
    python scripts/check_wheel.py dist/*.whl 0.10.2=3.13     # jax=Python

Each environment is made fresh with jax (no CUDA), then has the wheel and nothing else, answers
`pgle --version` and `pgle doctor --json` from a folder outside the checkout, and is deleted. Prints
a table. Ends with 1 if a file is missing, jax moved, or a command fails. Needs uv on PATH and the
network.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from try_install import packages, packages_python, sh

ENVIRONMENTS = (
    "0.4.38=3.11",
    "0.5.3=3.12",
    "0.6.2=3.13",
    "0.7.2=3.11",
    "0.8.3=3.12",
    "0.9.2=3.13",
    "0.10.2=3.11",
    "0.12.0.1=3.13",
)
"""The oldest jax and one of each line, over all Pythons."""
NEEDED = (
    "pgle/py.typed",
    "pgle/schemas/pgle.rehearse-1.json",
    "pgle/starters/docker/Dockerfile.pgle",
    "pgle/starters/skill/SKILL.md",
    "pgle/xla/data/flags_catalogue.toml",
)
LICENCES = {"LICENSE", "NOTICE", "METADATA", "entry_points.txt"}
HEADS = ("jax", "Python", "packages beside jax", "doctor", "checks", "all good")


def missing(wheel: Path) -> list[str]:
    """What a wheel lacks, and what it holds besides the package."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    about = {Path(name).name for name in names if ".dist-info/" in name}
    strange = [name for name in names if not name.startswith(("pgle/", "pgle-"))]
    lacks = [name for name in NEEDED if name not in names]
    return [*lacks, *sorted(LICENCES - about), *strange]


def attempt(jax: str, python: str, wheel: Path) -> tuple[list[str], bool]:
    """One row of the table, and whether all is good."""
    place = Path(tempfile.mkdtemp(prefix="pgle-wheel-"))
    os.environ["XDG_CACHE_HOME"] = str(place / "cache")
    interpreter = place / "venv/bin/python"
    install = ("uv", "pip", "install", "-q", "--python", interpreter)
    try:
        codes = [sh("uv", "venv", "-q", "--python", python, place / "venv")[0]]
        codes.append(sh(*install, f"jax=={jax}")[0])
        if any(codes):
            return [jax, python, "", "cannot be installed here", "", "NO"], False
        before = packages(interpreter)
        codes.append(sh(*install, wheel)[0])
        after = packages(interpreter)
        program = place / "venv/bin/pgle"
        codes.append(sh(program, "--version", cwd=place)[0])
        code, text, _ = sh(program, "doctor", "--json", cwd=place, good=(0, 1))
        found = json.loads(text)
        verdicts = [check["verdict"] for check in found["checks"]]
        codes.append(code if code not in (0, 1) else 0)  # 1: no plugin, no GPU
        moved = [name for name in before if after.get(name) != before[name]]
        said = ", ".join(
            f"{check['name']}: {check['verdict']}"
            for check in found["checks"]
            if check["verdict"] != "ok"
        )
        good = not any(codes) and not moved
        row = [
            jax,
            packages_python(place / "venv"),
            f"{len(set(after) - set(before)) - 1}",
            said,
            f"{len(verdicts)}",
            "yes" if good else f"NO ({codes}, moved {moved})",
        ]
        return row, good
    finally:
        shutil.rmtree(place, ignore_errors=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheel", type=Path)
    parser.add_argument("environments", nargs="*", metavar="JAX=PYTHON")
    options = parser.parse_args()
    wheel = options.wheel.resolve()
    wrong = missing(wheel)
    for name in wrong:
        print(f"{wheel.name}: {name}", file=sys.stderr)
    all_good = not wrong
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for row in (HEADS, ["---"] * len(HEADS)):
        print(f"| {' | '.join(row)} |", flush=True)
    for one in options.environments or ENVIRONMENTS:
        jax, _, python = one.partition("=")
        row, good = attempt(jax, python, wheel)
        print(f"| {' | '.join(row)} |", flush=True)
        all_good &= good
    sys.exit(0 if all_good else 1)


if __name__ == "__main__":
    main()
