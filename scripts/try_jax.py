"""Try `pgle run` with several releases of jax on five programs, and print a table of what came of
it.

    python scripts/try_jax.py 0.4.38 0.8.3 0.10.2
    python scripts/try_jax.py --environments '/somewhere/jax-{}' 0.12.0.1

Each release gets a virtual environment of its own (.venv-jax-VERSION); one that exists is used as
it is. All runs are on eight simulated H100: compiler, schedule and the use of the profile are real,
every time is simulated. The exit code is 1 if a run fails, or if XLA does not use its profile. A
step that the profile makes slower is a result: `pgle run` ends with 1, and the cell has its figure.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORKLOAD = "{} --devices 8 --compile-only"
PROGRAMS = {
    "tutorial": "train.py",
    "FSDP": f"{WORKLOAD.format('-m pgle.workloads fsdp')} --layers 4",
    "FSDP, scan": f"{WORKLOAD.format('-m pgle.workloads fsdp')} --layers 4 --scan",
    "tensor": f"{WORKLOAD.format(f'{ROOT}/benchmarks/programs/tensor.py')} --layers 2",
    "MoE": f"{WORKLOAD.format(f'{ROOT}/benchmarks/programs/moe.py')} --layers 2",
}
FIRST_CUDA13 = (0, 7, 2)  # the jaxlib that brought the CUDA 13 plugin
FIRST_WITHOUT_311 = (0, 11)  # the jax that needs Python 3.12


def environment(version: str, pattern: str) -> Path:
    """The folder of programs of an environment with that jax, made if it is not there."""
    folder = Path(pattern.format(version))
    if not folder.exists():
        at = tuple(int(part) for part in version.split("."))
        newer = (
            shutil.which("python3.12")
            if at >= FIRST_WITHOUT_311 and sys.version_info < (3, 12)
            else None
        )
        subprocess.run([newer or sys.executable, "-m", "venv", folder], check=True)
        plugin = "cuda13-local" if at >= FIRST_CUDA13 else "cuda12-local"
        wanted = ["--editable", str(ROOT), f"jax[{plugin}]=={version}"]
        subprocess.run(
            [folder / "bin/python", "-m", "pip", "install", "--quiet", *wanted],
            check=True,
        )
    return folder.resolve() / "bin"


def tutorial() -> dict[str, str]:
    """The programs of docs/guides/from-zero.md by their file names, as its reader last has them."""
    text = (ROOT / "docs/guides/from-zero.md").read_text(encoding="utf-8")
    files = dict(re.findall(r'```python title="(.+?)"\n(.*?)```', text, re.DOTALL))
    assert "train.py" in files, "docs/guides/from-zero.md has no train.py"
    return files


def tried(bin_folder: Path, name: str, folder: Path) -> tuple[str, bool]:
    """The cell of one program, and whether all is well; what pgle says goes to run.log in the run's
    folder.
    """
    words = PROGRAMS[name].split()
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    for file, text in tutorial().items():
        (folder / file).write_text(text, encoding="utf-8")
    options = ["--json", "--run-dir", "run", "--capture", "simulated", "--devices", "8"]
    command = [
        str(bin_folder / "pgle"),
        "run",
        *options,
        "--",
        str(bin_folder / "python"),
        *words,
    ]
    values = {key: value for key, value in os.environ.items() if key != "XLA_FLAGS"}
    with (folder / "run.log").open("w") as log:
        done = subprocess.run(
            command,
            cwd=folder,
            env=values,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            check=False,
        )
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        found = {}
    if "comparison" not in found:
        return f"**exit {done.returncode}**", False
    compared = found["comparison"]
    step = (
        "no step times"
        if compared is None
        else f"{100 * (compared['ratio'] - 1):+.1f} %".replace("-", "−")
    )
    is_slower = compared is not None and compared["ratio"] > 1
    if found["used"] and (done.returncode == 0 or is_slower):
        return step, True
    return (
        f"**{'used' if found['used'] else 'not used'}, exit {done.returncode}, {step}**",
        False,
    )


def main() -> int:
    """Print the table; 0 if every cell is good."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="+", metavar="VERSION")
    parser.add_argument(
        "--environments",
        default=".venv-jax-{}",
        help="where they are, with {} for the version",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        default=Path("build/jax-releases"),
        help="where the runs go",
    )
    options = parser.parse_args()
    print(f"| jax | {' | '.join(PROGRAMS)} |\n|---|{'---|' * len(PROGRAMS)}")
    all_good = True
    for version in options.versions:
        folder = environment(version, options.environments)
        cells = [
            tried(folder, name, options.runs / version / re.sub(r"\W+", "-", name))
            for name in PROGRAMS
        ]
        all_good &= all(good for _, good in cells)
        print(f"| {version} | {' | '.join(text for text, _ in cells)} |", flush=True)
    return 0 if all_good else 1


if __name__ == "__main__":
    sys.exit(main())
