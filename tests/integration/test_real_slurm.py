"""The Slurm scripts on a one-node Slurm: one that answers, else one started here (Debian's
slurm-wlm, as root).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.costs.profile.files import read_profile
from pgle.run.directory.manifest import read_manifest

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SCRIPTS = Path(__file__).parents[2] / "pgle" / "starters" / "slurm"

CONFIG = """ClusterName=one
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmdParameters=config_overrides
NodeName={host} CPUs=4
PartitionName=all Nodes=ALL Default=YES State=UP
"""

TRAIN = """
import os
import jax
size, rank = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_PROCID"])
jax.distributed.initialize("localhost:" + os.environ["PORT"], size, rank)
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

sharded = NamedSharding(Mesh(jax.devices(), "data"), PartitionSpec("data"))
x = jax.make_array_from_callback((jax.device_count() * 8, 64), sharded, lambda index: jnp.ones((8, 64)))
step = jax.jit(lambda x: jnp.tanh(x @ x.T @ x) / 2, out_shardings=sharded)
for number in range(30):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = step(x).block_until_ready()
"""


def answers(environ) -> bool:
    done = subprocess.run(
        ["sinfo", "-h", "-o", "%T"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0 and any(
        state in done.stdout for state in ("idle", "mixed", "allocated")
    )


def start(environ, folder: Path) -> None:
    """One-node Slurm with a munged of its own, both below the folder and clear of what else runs
    here.
    """
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    words = [
        "--socket",
        folder / "munge",
        "--key-file",
        key,
        "--pid-file",
        folder / "munged.pid",
    ]
    words += [
        "--log-file",
        folder / "munged.log",
        "--seed-file",
        folder / "munged.seed",
    ]
    subprocess.run(["munged", "--force", *words], env=environ, check=True, timeout=60)
    subprocess.run(["slurmctld"], env=environ, check=True, timeout=60)
    subprocess.run(["slurmd"], env=environ, check=True, timeout=60)
    subprocess.run(
        ["srun", "--immediate=30", "true"], env=environ, check=True, timeout=60
    )


def stop(environ, folder: Path) -> None:
    """End what `start` has started, as far as it came."""
    for name in ("slurmd.pid", "slurmctld.pid", "munged.pid"):
        if (folder / name).exists():
            os.kill(int((folder / name).read_text()), signal.SIGTERM)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """The environment in which srun and sbatch work."""
    environ = dict(os.environ)
    if answers(environ):
        yield environ
        return
    if os.geteuid() or not (
        shutil.which("slurmctld") and shutil.which("slurmd") and shutil.which("munged")
    ):
        pytest.skip(
            "no Slurm answers, and none can be started: needs root, slurmctld, slurmd and munged"
        )
    folder = tmp_path_factory.mktemp("slurm")
    config = folder / "slurm.conf"
    config.write_text(
        CONFIG.format(host=socket.gethostname().split(".")[0], folder=folder)
    )
    environ["SLURM_CONF"] = str(config)
    try:
        start(environ, folder)
    except (
        subprocess.SubprocessError,
        OSError,
    ) as error:  # of ours nothing has run yet: this machine cannot
        stop(environ, folder)
        pytest.skip(f"no Slurm answers, and none could be started here: {error}")
    yield environ
    stop(environ, folder)


@pytest.fixture(scope="module")
def submitted(slurm, tmp_path_factory):
    """The run directory and the output of a whole experiment, submitted and waited for."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "train.py").write_text(TRAIN)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    path = f"{Path(sys.executable).parent}:{slurm['PATH']}"
    mine = {
        "RUN": str(folder / "run"),
        "CAPTURE": "jax",
        "PORT": str(port),
        "JAX_PLATFORMS": "cpu",
        "PATH": path,
    }
    words = [
        "sbatch",
        "--wait",
        "--ntasks=4",
        "--ntasks-per-node=4",
        "--cpus-per-task=1",
        "--gpus-per-node=0",
        "--output",
        str(folder / "out"),
    ]
    done = subprocess.run(
        [*words, str(SCRIPTS / "pgle.sbatch"), sys.executable, str(folder / "train.py")],
        env={**slurm, **mine}, cwd=folder, capture_output=True, timeout=400, check=False,
    )  # fmt: skip
    return folder / "run", (folder / "out").read_text(errors="replace"), done


def test_the_job_ends_with_1_since_cpu_devices_use_no_profile(submitted):
    _, output, done = submitted
    assert done.returncode == 1, output[-3000:] + done.stderr.decode()
    assert "CPU devices" in output


def test_every_rank_was_profiled_and_reduced(submitted):
    run_dir, output, _ = submitted
    assert [record.rank for record in read_manifest(run_dir).of("profile")] == [
        0,
        1,
        2,
        3,
    ], output[-3000:]
    assert len(list((run_dir / "ranks").glob("rank*.pbtxt"))) == 4
    assert read_profile(run_dir / "profile.pbtxt").costs


def test_every_rank_was_given_the_same_profile(submitted):
    run_dir, _, _ = submitted
    assert (
        len({record.inputs[0].sha256 for record in read_manifest(run_dir).of("perf")})
        == 1
    )


def test_the_stages_are_compared(submitted):
    run_dir, output, _ = submitted
    assert "step time" in output
    steps = [
        json.loads(line)
        for line in (run_dir / "perf/steps.rank0003.jsonl").read_text().splitlines()
    ]
    assert len(steps) == 30
