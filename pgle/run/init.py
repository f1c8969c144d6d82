"""`pgle init`: write starter files from the package, such as job scripts, CI, a Makefile or a
Dockerfile.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from pgle import __version__
from pgle.errors import UserError, suggestion
from pgle.files import AnyPath, write_files

VERSION = "@VERSION@"  # the place in a starter for pgle's own version


@dataclass(frozen=True, slots=True)
class Starter:
    """Starter files for one purpose."""

    purpose: str  # one line
    files: dict[str, str]  # path in the package → path in the user's folder
    following: str  # what to do next, with a command


STARTERS = {
    "slurm": Starter(
        "batch scripts: the whole experiment, the profile alone, A-B-B-A",
        {
            f"slurm/{name}.sbatch": f"{name}.sbatch"
            for name in ("pgle", "profile", "compare")
        },
        "RUN=/shared/runs/a sbatch --nodes=8 pgle.sbatch python train.py",
    ),
    "k8s": Starter(
        "a JobSet for Kubernetes",
        {"kubernetes/pgle-jobset.yaml": "pgle-jobset.yaml"},
        "replace the words in CAPITALS, then: kubectl create -f pgle-jobset.yaml",
    ),
    "github": Starter(
        "a workflow for GitHub Actions on your GPU runner",
        {
            "github/pgle.yml": ".github/workflows/pgle.yml",
            "ci/compare.sh": ".github/pgle-compare.sh",
            "ci/install.sh": ".github/pgle-install.sh",
        },
        "set COMMAND in .github/workflows/pgle.yml, and commit all files",
    ),
    "gitlab": Starter(
        "a job for GitLab CI on your GPU runner",
        {
            "ci/gitlab-ci.yml": "ci/pgle.gitlab-ci.yml",
            "ci/compare.sh": "ci/pgle-compare.sh",
            "ci/install.sh": "ci/pgle-install.sh",
        },
        "set TRAIN in ci/pgle.gitlab-ci.yml, and include it: include: ci/pgle.gitlab-ci.yml",
    ),
    "make": Starter(
        "a Makefile whose stages are files",
        {"make/Makefile.pgle": "Makefile.pgle"},
        "make -f Makefile.pgle compare CMD='python train.py'",
    ),
    "docker": Starter(
        "an image, with every package by its hash",
        {
            "docker/Dockerfile.pgle": "Dockerfile.pgle",
            "docker/requirements.lock": "requirements.lock",
        },
        "read how to build it: head -n 14 Dockerfile.pgle",
    ),
    "rocm": Starter(
        "for AMD's GPUs: a Dockerfile, and settings for the batch scripts of slurm",
        {
            "rocm/Dockerfile.pgle-rocm": "Dockerfile.pgle-rocm",
            "rocm/requirements-rocm.lock": "requirements-rocm.lock",
            "rocm/rocm.sh": "rocm.sh",
        },
        "read how to build it: head -n 17 Dockerfile.pgle-rocm",
    ),
    "skill": Starter(
        "a page for agents: what to use when",
        {"skill/SKILL.md": "pgle/SKILL.md"},
        "mkdir -p .claude/skills && mv pgle .claude/skills/",
    ),
}


def init(name: str, folder: Path, *, force: bool = False) -> tuple[Path, ...]:
    """Write the files of a starter into a folder. Existing files stay unless `force` is true.

    Returns:
        Paths of the files that were written.
    """
    if name not in STARTERS:
        near = suggestion(name, STARTERS) or f"choose {', '.join(STARTERS)}"
        raise UserError(f"no starter called '{name}'", remedy=near)
    source = resources.files("pgle") / "starters"
    files: dict[AnyPath, bytes | str] = {
        folder / place: (source / where).read_text().replace(VERSION, __version__)
        for where, place in STARTERS[name].files.items()
    }
    write_files(files, force=force)
    written = tuple(Path(path) for path in files)
    for path in written:
        if path.suffix in (".sh", ".sbatch"):
            path.chmod(0o755)
    return written
