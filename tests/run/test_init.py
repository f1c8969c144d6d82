"""`pgle init`: files from the package, never over others."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run.init import STARTERS


@pytest.mark.parametrize("name", STARTERS)
def test_a_starter_is_written_with_what_to_do_next(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", name, "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sorted(found["written"]) == sorted(
        str(tmp_path / place) for place in STARTERS[name].files.values()
    )
    assert all(Path(path).read_bytes() for path in found["written"])
    assert run(["init", name, "-o", str(tmp_path), "--force"]) == 0
    assert found["next"].startswith(f"cd {tmp_path} && ")
    assert f"Next: {found['next']}" in capsys.readouterr().out


def test_what_exists_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pgle.sbatch").write_text("mine")
    assert run(["init", "slurm", "-o", str(tmp_path)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pgle.sbatch"]


def test_a_mistyped_starter_gets_a_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["init", "slrum"]) == 2
    assert "did you mean 'slurm'?" in capsys.readouterr().err


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["init"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in STARTERS)


@pytest.mark.parametrize("name", ["slurm", "github", "gitlab", "rocm"])
def test_scripts_are_sound_to_the_shell(name: str, tmp_path: Path) -> None:
    run(["init", name, "-o", str(tmp_path)])
    scripts = [
        path for path in tmp_path.rglob("*") if path.suffix in (".sh", ".sbatch")
    ]
    assert scripts
    for script in scripts:
        assert script.stat().st_mode & 0o111
        assert (
            subprocess.run(
                ["bash", "-n", script], capture_output=True, check=False
            ).returncode
            == 0
        )


def test_the_makefile_runs_each_stage_once_and_in_order(tmp_path: Path) -> None:
    run(["init", "make", "-o", str(tmp_path)])
    words = ["make", "-n", "-f", "Makefile.pgle", "compare", "CMD=python x.py", "RUN=r"]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        *("profile", "convert", "perf", "verify", "perf", "compare"),
    ]


FAKE = """#!/bin/bash
# pgle and srun of a test: what they are called with, and for srun what it starts.
printf '%s cpus=%s %s\\n' "${0##*/}" "${SRUN_CPUS_PER_TASK-}" "$*" >> calls
case "${0##*/} $*" in *"$FAILS"*) exit 1 ;; esac
[ "${0##*/}" = srun ] || exit 0
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""


def job(folder: Path, fails: str = "nothing") -> tuple[int, list[str]]:
    """Exit code of pgle.sbatch without Slurm, and the calls of pgle and srun."""
    run(["init", "slurm", "-o", str(folder), "--force"])
    for name in ("fake pgle", "srun"):
        (folder / name).write_text(FAKE)
        (folder / name).chmod(0o755)
    environment = {
        "PATH": os.environ["PATH"], "PGLE": str(folder / "fake pgle"), "SRUN": "./srun --container-image=i",
        "SLURM_CPUS_PER_TASK": "8", "SLURM_PROCID": "0", "SLURM_SUBMIT_DIR": ".", "SLURM_JOB_ID": "7", "FAILS": fails,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "pgle.sbatch", "train"], cwd=folder, env=environment, check=False
    )
    return done.returncode, (folder / "calls").read_text().splitlines()


def test_the_job_starts_ranks_as_asked_and_stages_in_order(tmp_path: Path) -> None:
    code, calls = job(tmp_path)
    assert code == 0
    starts = [line for line in calls if line.startswith("srun")]
    assert len(starts) == 3
    assert all(
        "--container-image=i" in line and "--wait=1800" in line and "cpus=8" in line
        for line in starts
    )
    stages = [line.split()[3] for line in calls if line.startswith("fake pgle")]
    assert stages == ["profile", "convert", "perf", "verify", "perf", "compare"]


def test_the_job_ends_before_the_performance_run_if_the_profile_does_not_fit(
    tmp_path: Path,
) -> None:
    code, calls = job(tmp_path, fails="fake pgle verify")
    assert code == 1
    assert not any("compare" in line for line in calls)
    assert sum("--baseline" not in line and " perf " in line for line in calls) == 0


@pytest.mark.parametrize("script", ["pgle", "profile", "compare"])
def test_a_job_has_whole_nodes_and_the_cores_of_each_gpu(
    script: str, tmp_path: Path
) -> None:
    run(["init", "slurm", "-o", str(tmp_path)])
    text = (tmp_path / f"{script}.sbatch").read_text()
    assert {"#SBATCH --exclusive", "#SBATCH --cpus-per-task=8"} <= set(
        text.splitlines()
    )
    assert {"##SBATCH --account=ACCOUNT", "##SBATCH --partition=PARTITION"} <= set(
        text.splitlines()
    )
    assert "export SRUN_CPUS_PER_TASK=" in text


@pytest.mark.parametrize(
    ("name", "file"),
    [("docker", "Dockerfile.pgle"), ("rocm", "Dockerfile.pgle-rocm")],
)
def test_the_image_runs_as_a_user_from_packages_with_hashes(
    name: str, file: str, tmp_path: Path
) -> None:
    run(["init", name, "-o", str(tmp_path)])
    lines = (tmp_path / file).read_text().splitlines()
    assert "USER pgle" in lines
    installs = [line for line in lines if "pip install" in line and line[0] != "#"]
    assert installs
    nothing_else = ("--require-hashes", "--no-index --no-deps")
    assert all(any(way in line for way in nothing_else) for line in installs)


def test_settings_for_amd_start_ranks_in_a_container(tmp_path: Path) -> None:
    run(["init", "rocm", "-o", str(tmp_path)])
    script = f". {tmp_path}/rocm.sh; echo $SRUN; echo $GPU_MAX_HW_QUEUES"
    done = subprocess.run(
        ["bash", "-uc", script],
        env={"PATH": os.environ["PATH"], "IMAGE": "a.sif"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["srun apptainer exec --rocm a.sif", "2"]
