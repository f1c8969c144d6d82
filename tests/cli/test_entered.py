"""How many files one has to know to follow the mission: those in which a function runs, and those
that are loaded for nothing. Counted, not timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROFILE = "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
DUMP = "hlo/jax-0.12.0.1/async"
TRACE = "pax_fsdp4/proc0.sqlite"

MISSION = {
    "convert": ("convert", TRACE, "--hlo", "pax_fsdp4/proc0/dump", "-o", "OUT/p.pbtxt"),
    "verify": ("verify", PROFILE, "--hlo", DUMP),
    "confirm": ("confirm", "logs/jax_0.10.2/used.log", "--profile", PROFILE),
    "compare": ("compare", "OUT/a.txt", "OUT/b.txt"),
}
MOST_ENTERED = 102  # by the four together
MOST_LOADED = 145
MOST_IDLE = 15  # of `pgle predict --profile`: tables, types and what other modules need


@dataclass(frozen=True)
class Walked:
    """Modules of pgle, by name."""

    loaded: frozenset[str]
    entered: frozenset[str]


def walked(words: tuple[str, ...], folder: Path) -> Walked:
    found = folder / "found.json"
    typed = [word.replace("OUT", str(folder)) for word in words]
    helper = str(ROOT / "tests" / "helpers" / "entered.py")
    subprocess.run(
        [sys.executable, helper, str(found), *typed],
        check=True,
        capture_output=True,
        cwd=ROOT / "testdata",
    )
    lists = json.loads(found.read_text())
    return Walked(frozenset(lists["loaded"]), frozenset(lists["entered"]))


@cache
def packages() -> frozenset[str]:
    """The packages that are a docstring alone."""
    marked = (ROOT / "pgle").rglob("__init__.py")
    empty = [path.parent for path in marked if "import" not in path.read_text()]
    return frozenset(".".join(path.relative_to(ROOT).parts) for path in empty)


def test_the_mission_is_followed_in_few_files(tmp_path: Path) -> None:
    for name, step_s in (("a", 0.2), ("b", 0.19)):
        lines = [f"step {at}: {step_s + at % 7 / 1e4:.4f} s\n" for at in range(40)]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    walks = [walked(words, tmp_path) for words in MISSION.values()]
    assert (tmp_path / "p.pbtxt").exists()
    assert len(frozenset().union(*(walk.entered for walk in walks))) <= MOST_ENTERED
    assert len(frozenset().union(*(walk.loaded for walk in walks))) <= MOST_LOADED


def test_a_prediction_loads_little_for_nothing(tmp_path: Path) -> None:
    found = walked(("predict", DUMP, "--profile", PROFILE), tmp_path)
    idle = found.loaded - found.entered - packages()
    assert len(idle) <= MOST_IDLE, sorted(idle)
