"""Programs that know nothing of pgle, on CPU devices: under it they behave as alone, and leave a
run directory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from pgle.cli.main import run
from pgle.run.directory.manifest import read_manifest
from pgle.run.inputs.traces import read_traces

TRAIN = """
import os, sys
{before}
import jax, jax.numpy as jnp

step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.eye(32)
for number in range(12):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        x = step(x).block_until_ready()
    print("loss", number, flush=number % 2 == 0)
{after}
"""

OWN_TRACE = """
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = step(jnp.eye(32))
with jax.profiler.trace({folder!r}):
    for number in range(3):
        x = step(x).block_until_ready()
print("traced")
"""

PLAIN = """
import time
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.eye(32)
for number in range(14):
    x = step(x).block_until_ready()
    print(f"step {number} loss 1.0", flush=True)
    time.sleep(0.1)
"""


@pytest.fixture
def program(tmp_path):
    """Write a program and give its path."""

    def write(text: str, name: str = "train.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def launch(tmp_path, monkeypatch, capfdbinary):
    """Run a command under `pgle profile`, in a process of its own or in this one; or alone."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    profile = ["profile", "--run-dir", str(tmp_path / "run"), "--capture", "jax"]

    def alone(*words: str, **options) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            words, capture_output=True, timeout=120, check=False, **options
        )

    def as_process(*words: str, **options) -> subprocess.CompletedProcess[bytes]:
        return alone(sys.executable, "-m", "pgle", *profile, "--", *words, **options)

    def under(*words: str, options=()) -> subprocess.CompletedProcess[bytes]:
        capfdbinary.readouterr()
        code = run([*profile, *options, "--", *words])
        return subprocess.CompletedProcess(words, code, *capfdbinary.readouterr())

    under.alone = alone
    under.as_process = as_process
    under.run_dir = tmp_path / "run"
    return under


def steps_of(folder) -> list[dict]:
    return [
        json.loads(line)
        for line in (folder / "profile/steps.jsonl").read_text().splitlines()
    ]


def assert_same(
    expected: subprocess.CompletedProcess[bytes],
    found: subprocess.CompletedProcess[bytes],
    run_dir,
    traced: bool = True,
) -> None:
    """Under pgle a command prints the same bytes to stdout and ends with the same code; with 1
    where that is 0 and there is no trace.
    """
    assert found.returncode == (expected.returncode or int(not traced)), (
        found.stderr.decode()
    )
    assert (
        b"profile failed: no trace: " in found.stderr
    ) is not traced or expected.returncode
    assert found.stdout == expected.stdout
    record = read_manifest(run_dir).last("profile")
    assert record is not None
    assert record.exit_code == expected.returncode
    assert record.ended
    logged = (run_dir / "profile/output.log").read_bytes()
    assert all(line in logged for line in expected.stdout.splitlines())


def printing(lines: str, code: int = 0) -> subprocess.CompletedProcess[bytes]:
    """What a program does alone, as it says itself."""
    return subprocess.CompletedProcess([], code, lines.encode())


LOSSES = "".join(f"loss {number}\n" for number in range(12))


def test_a_flat_script_is_traced_and_timed(launch, program):
    words = (sys.executable, program(TRAIN.format(before="", after="")))
    expected = launch.alone(*words)
    assert expected.stdout.decode() == LOSSES
    assert_same(expected, launch.as_process(*words), launch.run_dir)
    steps = steps_of(launch.run_dir)
    assert [step["step"] for step in steps] == list(range(12))
    assert [step["step"] for step in steps if step.get("profiled")] == [4, 5, 6, 7, 8]
    assert [step["step"] for step in steps if step.get("compiled")] == [0]
    assert len(read_traces([launch.run_dir]).instructions) > 0
    facts = json.loads((launch.run_dir / "profile/facts.json").read_text())
    assert facts["platform"] == "cpu"
    assert facts["finished"]
    assert facts["window"] == {"steps": [4, 8]}


def test_a_window_is_what_was_asked_for_and_helpers_that_only_import_jax_leave_no_files(
    launch, program
):
    helper = "import subprocess; subprocess.run([sys.executable, '-c', 'import jax'], check=True)"
    words = (sys.executable, program(TRAIN.format(before=helper, after="")))
    assert_same(
        printing(LOSSES),
        launch(*words, options=("--window", "steps:6-7")),
        launch.run_dir,
    )
    assert [
        step["step"] for step in steps_of(launch.run_dir) if step.get("profiled")
    ] == [6, 7]
    kept = sorted(
        path.name
        for path in (launch.run_dir / "profile").iterdir()
        if not path.name.startswith(".")
    )
    assert kept == ["facts.json", "hlo", "ir", "output.log", "steps.jsonl", "trace"]


def test_a_bash_wrapper_and_its_exit_code_are_passed_through(launch, program):
    script = program(
        f'cd /\nexport MODE=x\n"{sys.executable}" "$1" | sed s/loss/LOSS/\nexit ${{PIPESTATUS[0]}}\n',
        "train.sh",
    )
    found = launch(
        "bash", script, program(TRAIN.format(before="", after="sys.exit(3)"))
    )
    assert_same(printing(LOSSES.upper(), 3), found, launch.run_dir)
    assert found.returncode == 3
    assert b"exit code 3" in found.stderr
    assert len(steps_of(launch.run_dir)) == 12


def test_a_program_that_ends_itself_by_a_signal(launch, program):
    end = "sys.stdout.flush(); import time; time.sleep(0.5); os.kill(os.getpid(), 9)"
    found = launch(sys.executable, program(TRAIN.format(before="", after=end)))
    assert found.returncode == 128 + signal.SIGKILL
    assert found.stdout.decode() == LOSSES
    assert len(steps_of(launch.run_dir)) == 11  # the twelfth had no end
    assert b"no trace" not in found.stderr


def test_sigterm_reaches_the_program_once_and_its_answer_decides(launch, program):
    handler = "import signal\nsignal.signal(signal.SIGTERM, lambda *_: (print('asked to stop', flush=True), sys.exit(7)))"
    text = TRAIN.format(
        before=handler,
        after="print('ready', flush=True)\nimport time\nwhile True: time.sleep(0.1)",
    )
    pgle = [
        sys.executable,
        "-m",
        "pgle",
        "profile",
        "--run-dir",
        str(launch.run_dir),
        "--capture",
        "jax",
        "--",
    ]
    child = subprocess.Popen(
        [*pgle, sys.executable, program(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line == b"ready\n":
            child.send_signal(signal.SIGTERM)
            break
    rest = child.stdout.read()
    assert child.wait(60) == 7
    assert rest.count(b"asked to stop") == 1
    record = read_manifest(launch.run_dir).last("profile")
    assert record is not None
    assert record.exit_code == 7


def test_a_program_killed_by_sigterm_leaves_a_complete_directory(launch, program):
    text = TRAIN.format(
        before="",
        after="import time; time.sleep(0.5); print('ready', flush=True); time.sleep(100)",
    )
    pgle = [
        sys.executable,
        "-m",
        "pgle",
        "profile",
        "--run-dir",
        str(launch.run_dir),
        "--capture",
        "jax",
        "--",
    ]
    child = subprocess.Popen(
        [*pgle, sys.executable, program(text)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdout is not None
    for line in child.stdout:
        if line == b"ready\n":
            child.send_signal(signal.SIGTERM)
            break
    child.stdout.close()
    assert child.wait(60) == 143
    record = read_manifest(launch.run_dir).last("profile")
    assert record is not None
    assert (record.exit_code, bool(record.ended)) == (143, True)
    assert len(steps_of(launch.run_dir)) == 11


def test_a_program_with_its_own_trace_keeps_it_and_we_use_it(launch, program, tmp_path):
    script = program(OWN_TRACE.format(folder=str(tmp_path / "own")))
    found = launch(sys.executable, script)
    assert (found.returncode, found.stdout) == (0, b"traced\n")
    assert b"its own trace is used" in found.stderr
    assert len(list((tmp_path / "own").rglob("*.xplane.pb"))) == 1
    assert len(read_traces([launch.run_dir]).instructions) > 0


def test_a_program_that_replaces_xla_flags_keeps_its_own_and_gets_ours(launch, program):
    before = "import jax; os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=3'"
    after = "print(jax.device_count())"
    flags = (
        "--flag=--xla_gpu_memory_limit_slop_factor=93",
        "--flag=--xla_force_host_platform_device_count=5",
    )
    found = launch(
        sys.executable, program(TRAIN.format(before=before, after=after)), options=flags
    )
    assert found.stdout.endswith(b"3\n")
    assert (
        b"--flag --xla_force_host_platform_device_count=5 has no effect: the program sets"
        in found.stderr
    )
    record = read_manifest(launch.run_dir).last("profile")
    assert record is not None
    assert "--xla_force_host_platform_device_count=3" in record.xla_flags
    assert "--xla_gpu_memory_limit_slop_factor=93" in record.xla_flags
    assert "--xla_gpu_enable_latency_hiding_scheduler=true" in record.xla_flags
    assert any((launch.run_dir / "profile/hlo").iterdir())


def test_a_program_without_jax_has_its_stdin_and_an_existing_sitecustomize(
    launch, program, tmp_path, monkeypatch
):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        "import sys; sys.ran = getattr(sys, 'ran', 0) + 1\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"), prepend=os.pathsep)
    words = (
        sys.executable,
        program(
            "import sys, sitecustomize; print(input(), sys.ran, sitecustomize.__file__)"
        ),
    )
    given = {"input": b"from outside\n"}
    found = launch.as_process(*words, **given)
    assert_same(launch.alone(*words, **given), found, launch.run_dir, traced=False)
    assert found.stdout == f"from outside 1 {tmp_path}/site/sitecustomize.py\n".encode()
    assert b"compiled nothing with jax" in found.stderr
    assert not (launch.run_dir / "profile/steps.jsonl").exists()


def test_no_python_at_all(launch):
    found = launch("printf", "a\\nb")
    assert_same(printing("a\nb"), found, launch.run_dir, traced=False)
    assert b"the capture hook was not loaded" in found.stderr


@pytest.mark.parametrize("switch", ["-S", "-I"])
def test_an_interpreter_that_loads_no_hook(launch, program, switch):
    found = launch(sys.executable, switch, program("print('hello')"))
    assert_same(printing("hello\n"), found, launch.run_dir, traced=False)
    assert b"the capture hook was not loaded" in found.stderr


def test_steps_that_are_only_printed_are_timed_and_executions_open_the_window(
    launch, program
):
    expected = printing("".join(f"step {number} loss 1.0\n" for number in range(14)))
    assert_same(expected, launch(sys.executable, program(PLAIN)), launch.run_dir)
    steps = steps_of(launch.run_dir)
    assert [step["step"] for step in steps] == list(range(1, 14))
    assert all(step["between_lines"] for step in steps)
    assert any(step.get("profiled") for step in steps)
    assert len(read_traces([launch.run_dir]).instructions) > 0


SHORT = """
import time
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.eye(32)
for number in range({steps}):
    x = step(x).block_until_ready()
    time.sleep(0.01)
"""


def test_a_short_program_that_marks_nothing_is_traced(launch, program):
    found = launch(sys.executable, program(SHORT.format(steps=60)))
    assert_same(printing(""), found, launch.run_dir)
    assert b"executions in" in found.stderr
    trace = read_traces([launch.run_dir])
    assert "jit__lambda" in {module.name for module in trace.modules}
    assert trace.execution.max() >= 3  # the program runs on while the profiler starts


def test_one_too_short_is_told_a_remedy_and_that_works(launch, program):
    words = (sys.executable, program(SHORT.format(steps=2)))
    failed = launch(*words)
    assert failed.returncode == 1
    assert b"no trace: the program ended" in failed.stderr
    assert (
        b"no trace" not in launch(*words, options=("--force", "--window", "all")).stderr
    )
    assert "jit__lambda" in {
        module.name for module in read_traces([launch.run_dir]).modules
    }


def test_a_command_that_does_not_exist_is_said_before_anything_is_made(launch):
    found = launch("no-such-program")
    assert found.returncode == 2
    assert found.stderr.count(b"\n") == 1
    assert not launch.run_dir.exists()


API = """
import pgle, sys
assert "jax" not in sys.modules and "numpy" not in sys.modules
import jax, jax.numpy as jnp
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.eye(32)
for number in range(100, 112):
    with pgle.step(number):
        x = step(x).block_until_ready()
print("done")
"""


def test_steps_marked_by_pgle_step_with_json_on_stdout(launch, program):
    found = launch(sys.executable, program(API), options=("--json",))
    assert found.returncode == 0, found.stderr.decode()
    assert json.loads(found.stdout)["steps"] == 12
    assert b"done\n" in found.stderr
    assert [step["step"] for step in steps_of(launch.run_dir)] == list(range(100, 112))
    facts = json.loads((launch.run_dir / "profile/facts.json").read_text())
    assert facts["step_source"] == "api"
    assert facts["window"] == {"steps": [104, 108]}
