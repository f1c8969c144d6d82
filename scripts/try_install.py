"""Installs pgle into environments that have a jax already, and shows that it moves nothing there.

    python scripts/try_install.py [--keep DIR] [JAX=PYTHON ...]

Each environment is made fresh with the user's own jax and CUDA wheels; then `pip install` of this
checkout's wheel, `pgle doctor`, `pgle rehearse` and `pgle convert`. Prints the table of
docs/evidence/install.md. Ends with 1 if jax or its plugin changed, if there is not exactly one
plugin, or if a command fails. Needs uv on PATH and the network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTDATA = ROOT / "testdata"
USERS = {
    "jax[cuda12]==0.4.38": "3.11",
    "jax[cuda12]==0.8.3": "3.11",
    "jax[cuda13]==0.10.2": "3.11",
    "jax[cuda13]==0.12.0.1": "3.12",
    "jax==0.10.2": "3.11",
}
"""What the user has, and their Python; the last has no plugin: the command that `pgle doctor` names
gives it one.
"""


def sh(
    *words: str | Path, cwd: Path | None = None, good: tuple[int, ...] = (0,)
) -> tuple[int, str, float]:
    """Exit code, output and seconds of a command; what it says on stderr where the code is none of
    the good.
    """
    begin = time.perf_counter()
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode not in good:
        print(
            f"{' '.join(map(str, words))}: exit code {done.returncode}\n{done.stderr[-2000:]}",
            file=sys.stderr,
        )
    return done.returncode, done.stdout, time.perf_counter() - begin


def packages(python: Path) -> dict[str, str]:
    """Versions of all packages of an environment."""
    _, text, _ = sh("uv", "pip", "list", "--format", "json", "--python", python)
    return {item["name"]: item["version"] for item in json.loads(text)}


def size_mib(folder: Path) -> float:
    """Of all files below a folder."""
    return (
        sum(
            path.lstat().st_size
            for path in folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        )
        / 2**20
    )


def packages_python(venv: Path) -> str:
    """The version of an environment's Python."""
    return sh(
        venv / "bin/python", "-c", "import platform; print(platform.python_version())"
    )[1].strip()


def attempt(spec: str, python: str, wheel: Path, place: Path) -> tuple[list[str], bool]:
    """One row of the table, and whether nothing was moved and everything worked."""
    venv = place / spec.replace("[", "-").replace("]", "").replace("==", "-")
    sh("uv", "venv", "-q", "--clear", "--seed", "--python", python, venv)
    sh("uv", "pip", "install", "-q", "--python", venv / "bin/python", spec)
    before, size = packages(venv / "bin/python"), size_mib(venv)
    code, _, install_s = sh(
        "uv", "pip", "install", "-q", "--python", venv / "bin/python", f"{wheel}"
    )
    codes = [code]
    after = packages(venv / "bin/python")
    pgle = venv / "bin/pgle"
    added = size_mib(venv) - size
    if not any("plugin" in name for name in before):
        checks = json.loads(sh(pgle, "doctor", "--json", good=(0, 1))[1])["checks"]
        remedy = next(
            check["remedy"] for check in checks if check["name"] == "CUDA plugin"
        )
        codes.append(sh("sh", "-c", remedy)[0])
        after = packages(venv / "bin/python")
    work = Path(tempfile.mkdtemp(dir=place))
    diagnosis = json.loads(
        sh(pgle, "doctor", "--json", cwd=work, good=(0, 1))[1]
    )  # 1: there are no GPUs
    codes.append(0 if diagnosis["rehearses"] else 1)
    program = (venv / "bin/python", "-m", "pgle.workloads", "overlap", "--compile-only")
    code, text, rehearse_s = sh(
        pgle,
        "rehearse",
        "--target",
        "a100",
        "--devices",
        "4",
        "--json",
        "--",
        *program,
        cwd=work,
    )
    codes.append(code if not text else 0 if json.loads(text).get("used") else 1)
    traces = [TESTDATA / f"pax_fsdp4/proc{rank}.sqlite" for rank in (0, 3)]
    code, _, convert_s = sh(pgle, "convert", *traces, "-o", "step.pbtxt", cwd=work)
    codes.append(code)
    moved = sorted(name for name in before if after.get(name) != before[name])
    plugins = sorted(
        name
        for name in after
        if name.startswith("jax-cuda") and name.endswith("plugin")
    )
    new = sorted(set(after) - set(before) - {"pgle"})
    good = not moved and len(plugins) == 1 and not any(codes)
    row = [f"`{spec}`", packages_python(venv), ", ".join(moved) or "nothing",
           " and ".join(f"{name} {after[name]}" for name in plugins),
           f"{len(new)}", f"{added:.0f} MiB", f"{install_s:.1f} s", f"{rehearse_s:.1f} s", f"{convert_s:.1f} s",
           "yes" if good else "NO"]  # fmt: skip
    return row, good


HEADS = ("the user has", "Python", "moved", "plugin after", "packages added", "size", "install", "rehearse", "convert",
         "all good")  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", type=Path, help="environments are made and kept here")
    parser.add_argument(
        "users",
        nargs="*",
        metavar="JAX=PYTHON",
        help="such as 'jax[cuda12]==0.8.3=3.11'",
    )
    options = parser.parse_args()
    users = dict(item.rsplit("=", 1) for item in options.users) or USERS
    place = options.keep or Path(tempfile.mkdtemp(prefix="pgle-install-"))
    place.mkdir(parents=True, exist_ok=True)
    os.environ.update(PYTHONDONTWRITEBYTECODE="1", XDG_CACHE_HOME=str(place / "cache"))
    built = sh("uv", "build", "-q", "--wheel", "--out-dir", place / "dist", ROOT)
    wheel = max((place / "dist").glob("*.whl"), key=lambda path: path.stat().st_mtime)
    for row in (HEADS, ["---"] * len(HEADS)):
        print(f"| {' | '.join(row)} |", flush=True)
    all_good = built[0] == 0
    for spec, python in users.items():
        row, good = attempt(spec, python, wheel, place)
        print(f"| {' | '.join(row)} |", flush=True)
        all_good &= good
    sys.exit(0 if all_good else 1)


if __name__ == "__main__":
    main()
