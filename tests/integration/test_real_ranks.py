"""Two processes of one job, joined by jax.distributed on CPU devices, each under pgle with its
rank's variables.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import warnings

import pytest

from pgle.costs.profile.files import read_profile
from pgle.run.directory.manifest import read_manifest
from pgle.run.inputs.step_times import read_runs
from pgle.run.inputs.traces import read_traces

RANKS = 2
ABORTED = 128 + signal.SIGABRT

TRAIN = """
import os, sys
import jax
rank, size, port = int(os.environ["JAX_PROCESS_ID"]), int(os.environ["JAX_NUM_PROCESSES"]), sys.argv[1]
jax.distributed.initialize(f"localhost:{port}", size, rank)
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

mesh = Mesh(jax.devices(), "data")
sharded = NamedSharding(mesh, PartitionSpec("data"))
x = jax.make_array_from_callback((size * 8, 64), sharded, lambda index: jnp.ones((8, 64)))
step = jax.jit(lambda x: jnp.tanh(x @ x.T @ x) / 2, out_shardings=sharded)
for number in range(12):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = step(x).block_until_ready()
print("rank", rank, "of", jax.process_count())
"""

pytestmark = pytest.mark.slow


def start_all(words_of, stage_words, run_dir):
    """One pgle per rank, all at once; their results by rank."""
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    children = []
    for rank in range(RANKS):
        mine = {
            "JAX_PLATFORMS": "cpu",
            "JAX_PROCESS_ID": str(rank),
            "JAX_NUM_PROCESSES": str(RANKS),
        }
        words = [
            sys.executable,
            "-m",
            "pgle",
            *stage_words(rank),
            "--run-dir",
            str(run_dir),
            "--capture",
            "jax",
            "--",
        ]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        children.append(
            subprocess.Popen([*words, *words_of(rank)], env=environ | mine, **pipes)
        )
    return [(*child.communicate(timeout=240), child.returncode) for child in children]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "train.py"
    path.write_text(TRAIN)

    def words(_rank: int) -> list[str]:
        return [sys.executable, str(path), str(words.port)]

    def new_port() -> None:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            words.port = free.getsockname()[1]

    words.new_port = new_port
    return words


@pytest.fixture(scope="module")
def profiled(tmp_path_factory, program):
    """A run directory that all ranks have profiled into. jaxlib's processes sometimes abort while
    they meet on a busy machine: such a job is started once more, and a warning has its output.
    """
    for _ in range(2):
        run_dir = tmp_path_factory.mktemp("runs") / "ranks"
        program.new_port()
        results = start_all(program, lambda rank: ["profile"], run_dir)
        if ABORTED not in [code for _, _, code in results]:
            break
        warnings.warn(f"a rank was aborted: {results}", stacklevel=1)
    assert [code for _, _, code in results] == [0] * RANKS, results
    for rank, (stdout, _, _) in enumerate(results):
        assert stdout.endswith(
            f"rank {rank} of {RANKS}\n".encode()
        )  # Gloo prints before
    return run_dir


def test_every_rank_has_its_own_files(profiled):
    stage = profiled / "profile"
    for suffix in ("", ".rank0001"):
        assert (stage / f"output{suffix}.log").is_file()
        assert len((stage / f"steps{suffix}.jsonl").read_text().splitlines()) == 12
        facts = json.loads((stage / f"facts{suffix}.json").read_text())
        assert facts["process_count"] == RANKS
        assert f".rank{facts['process_index']:04d}" == (suffix or ".rank0000")
    assert sorted(path.name for path in (stage / "trace").iterdir()) == [
        f"rank{rank:04d}" for rank in range(RANKS)
    ]


def test_the_manifest_has_a_record_of_every_rank(profiled):
    records = read_manifest(profiled).of("profile")
    assert [(record.rank, record.ranks, record.exit_code) for record in records] == [
        (r, RANKS, 0) for r in range(RANKS)
    ]


def test_the_traces_of_all_ranks_are_read_as_one(profiled):
    assert len(read_traces([profiled]).devices) == RANKS


def test_step_times_are_those_of_the_slowest_rank(profiled):
    (series,) = read_runs(str(profiled / "profile"))
    assert len(series) == 12


def test_ranks_that_are_given_different_profiles_are_refused(
    profiled, program, tmp_path
):
    def stage(rank: int) -> list[str]:
        own = tmp_path / f"given{rank}.pbtxt"
        own.write_text(f'costs {{ name: "dot.1" cost_us: {rank}.5 }}\n')
        return ["perf", "--profile", str(own)]

    results = start_all(lambda rank: ["true"], stage, tmp_path / "run")
    refused = [stderr for _, stderr, code in results if code == 2]
    assert len(refused) >= RANKS - 1
    assert b"another rank was given another profile" in refused[0]


@pytest.mark.minutes
def test_a_performance_run_on_cpu_devices_cannot_be_confirmed(
    profiled, program, tmp_path
):
    profile = tmp_path / "profile.pbtxt"
    profile.write_text('costs { name: "dot.1" cost_us: 1.5 }\n')
    program.new_port()
    results = start_all(
        program, lambda rank: ["perf", "--profile", str(profile)], tmp_path / "run"
    )
    assert [code for _, _, code in results] == [1] * RANKS, results
    assert b"CPU devices" in results[0][1]
    records = read_manifest(tmp_path / "run").of("perf")
    assert [record.facts["verdict"] for record in records] == ["cannot-tell"] * RANKS
    assert len({record.inputs[0].sha256 for record in records}) == 1


@pytest.fixture
def launcher(program, tmp_path):
    """A command that starts all ranks, as srun does, with the words for the program after it."""
    program.new_port()
    starter = tmp_path / "start.sh"
    line = f"for rank in 0 1; do JAX_PROCESS_ID=$rank JAX_NUM_PROCESSES={RANKS} {shlex.quote(sys.executable)} "
    starter.write_text(f"{line} {program(0)[1]} {program.port} & done; wait\n")
    return ["bash", str(starter)]


def pgle(*words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    environ = {**os.environ, "JAX_PLATFORMS": "cpu", **variables}
    return subprocess.run(
        [sys.executable, "-m", "pgle", *words],
        env=environ,
        capture_output=True,
        timeout=240,
        check=False,
    )


def test_one_launcher_over_all_ranks_finds_each_by_itself(launcher, tmp_path):
    """`pgle profile -- mpirun python train.py`: the hooks find their ranks."""
    done = pgle(
        "profile",
        "--run-dir",
        str(tmp_path / "run"),
        "--capture",
        "jax",
        "--",
        *launcher,
    )
    assert done.returncode == 0, done.stderr
    traces = sorted(path.name for path in (tmp_path / "run/profile/trace").iterdir())
    assert traces == [f"rank{rank:04d}" for rank in range(RANKS)]
    assert (tmp_path / "run/profile/steps.rank0001.jsonl").is_file()


@pytest.mark.minutes
def test_all_stages_with_the_launcher_inside(launcher, tmp_path):
    """`pgle run -- srun python train.py`: one pgle, the ranks below it."""
    done = pgle(
        "run",
        "--run-dir",
        str(tmp_path / "run"),
        "--capture",
        "jax",
        "--json",
        "--",
        *launcher,
    )
    assert done.returncode == 1, done.stderr  # CPU devices use no profile
    assert len(read_traces([tmp_path / "run"]).devices) == RANKS
    dumps = sorted(path.name for path in (tmp_path / "run/profile").glob("hlo*"))
    assert dumps == ["hlo", "hlo.rank0001"]
    assert len(read_profile(tmp_path / "run/profile.pbtxt").costs) > 0
    for stage in ("baseline", "perf"):
        (series,) = read_runs(str(tmp_path / "run" / stage))
        assert len(series) == 12


def test_all_stages_started_by_every_rank_are_refused(tmp_path):
    words = [
        "run",
        "--run-dir",
        str(tmp_path / "run"),
        "--capture",
        "jax",
        "--",
        "true",
    ]
    done = pgle(*words, SLURM_PROCID="2", SLURM_STEP_NUM_TASKS="4")
    assert done.returncode == 2
    assert (
        b"started by every rank of the job (here rank 2, by slurm); start it once, with the launcher"
        in done.stderr
    )
    assert not (tmp_path / "run").exists()
