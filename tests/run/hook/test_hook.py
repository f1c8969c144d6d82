"""The parts of the capture hook, each by itself; whole programs are in
tests/integration/test_real_programs.py.
"""

from __future__ import annotations

import ast
import importlib
import json
import logging
import os
import subprocess
import sys
import zipfile
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pgle.run.directory.directory import RunDirectory
from pgle.run.hook import HOOK_SITE, hook_config
from pgle.run.process.launchers import Rank
from pgle.xla.flags.text import parse_flags
from pgle.xla.log.messages import AUTO_PGLE

SOURCES = sorted(HOOK_SITE.rglob("*.py"))


@pytest.fixture
def hook(monkeypatch):
    """Import a module of the hook, as the user's program does."""
    monkeypatch.syspath_prepend(str(HOOK_SITE))
    yield lambda name: importlib.import_module(f"pgle_hook.{name}")
    for name in [name for name in sys.modules if name.split(".")[0] == "pgle_hook"]:
        del sys.modules[name]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_jax_is_private_in_one_file_only(path):
    assert "jax._src" not in path.read_text() or path.name == "jax_private.py"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_python_3_9_reads_it(path):
    ast.parse(path.read_text(), feature_version=(3, 9))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_only_the_standard_library_is_imported(path):
    tree = ast.parse(path.read_text())
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    names |= {
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
    }
    assert {name.split(".")[0] for name in names} <= sys.stdlib_module_names | {
        "pgle_hook"
    }


def steer(window, steps: range, compiled=()) -> list[tuple[int, str]]:
    """What the window wishes at each step."""
    wishes = [(step, window.on_step(step, step in compiled)) for step in steps]
    return [(step, wish) for step, wish in wishes if wish]


@pytest.mark.parametrize(
    ("text", "compiled", "wishes"),
    [
        ("auto", {1}, [(4, "open"), (9, "close")]),
        ("auto", {1, 3}, [(6, "open"), (11, "close")]),  # compiled again: wait anew
        ("steps:5-7", {1}, [(5, "open"), (8, "close")]),
        ("steps:5", {1}, [(5, "open"), (6, "close")]),
        ("none", {1}, []),
    ],
)
def test_windows_by_steps(hook, text, compiled, wishes):
    assert steer(hook("window").TraceWindow(text), range(1, 20), compiled) == wishes


def settled(window, compiled_until=10.0):
    """A window in a program that has compiled for ten seconds."""
    window.on_compile(seconds=1.0, now=compiled_until - 9, heavy=True)
    window.on_compile(seconds=6.0, now=compiled_until, heavy=True)
    return window


def test_a_window_without_steps_opens_after_quiet_time(hook):
    window = settled(hook("window").TraceWindow("auto"))
    assert window.on_time(now=12.0) is None
    assert window.on_time(now=13.5) == "open"
    window.opened(14.0)
    assert window.on_time(now=18.5) is None
    assert window.on_time(now=19.5) == "close"
    window.closed(19.5)
    assert window.describe() == {"seconds": 5.5}


def test_executions_open_a_window_sooner(hook):
    window = settled(hook("window").TraceWindow("auto"))
    assert [window.on_execution(now) for now in (10.1, 10.2, 10.3)] == [
        None
    ] * 3  # a tenth of ten seconds is not over
    assert window.on_execution(11.1) == "open"


def test_a_compilation_begins_the_count_anew(hook):
    window = settled(hook("window").TraceWindow("auto"))
    window.on_execution(11.1)
    window.on_execution(11.2)
    window.on_compile(seconds=0.1, now=11.3, heavy=False)
    assert [window.on_execution(now) for now in (14.0, 14.1, 14.2)] == [
        None,
        None,
        "open",
    ]


def opened(window):
    settled(window)
    assert [window.on_execution(now) for now in (11.1, 11.2, 11.3)] == [
        None,
        None,
        "open",
    ]
    window.opened(12.0)
    return window


def test_long_executions_hold_a_window_open(hook):
    window = opened(hook("window").TraceWindow("auto"))
    assert [window.on_execution(12.0 + 4 * number) for number in range(1, 6)] == [
        None
    ] * 4 + ["close"]
    window.closed(32.0)
    assert window.describe() == {"seconds": 20.0, "executions": 5}


def test_a_window_opened_too_soon_lasts_through_a_long_compilation(hook):
    window = opened(hook("window").TraceWindow("auto"))
    assert [window.on_execution(12.0 + number / 10) for number in range(10)] == [
        None
    ] * 10
    assert window.on_time(now=300.0) is None
    window.on_compile(seconds=280.0, now=301.0, heavy=True)
    window.on_execution(302.0)
    assert window.on_time(now=400.0) is None
    assert window.on_time(now=1000.0) == "close"


def test_a_heavy_compilation_in_the_window_begins_it_anew(hook):
    window = opened(hook("window").TraceWindow("auto"))
    window.on_compile(seconds=4.0, now=16.5, heavy=True)
    assert [window.on_execution(17.0 + number / 10) for number in range(10)] == [
        None
    ] * 10
    assert window.on_execution(22.0) == "close"


def test_marks_take_over_a_window_that_executions_opened(hook):
    window = opened(hook("window").TraceWindow("auto"))
    assert steer(window, range(7, 8)) == []
    assert not window.wants_executions
    assert steer(window, range(8, 20)) == [(12, "close")]
    assert window.describe() == {"steps": [7, 11]}


def test_seconds_are_as_many_as_asked_for_after_the_same_start(hook):
    window = settled(hook("window").TraceWindow("seconds:2"))
    assert [window.on_execution(now) for now in (11.1, 11.2, 11.3)][-1] == "open"
    window.opened(12.0)
    assert not window.wants_executions
    assert window.on_time(now=13.9) is None
    assert window.on_time(now=14.1) == "close"


def test_all_begins_with_the_first_compilation_and_has_no_end(hook):
    window = hook("window").TraceWindow("all")
    assert window.on_compile(seconds=1.0, now=1.0, heavy=True) == "open"
    window.opened(1.1)
    assert window.on_compile(seconds=1.0, now=3.0, heavy=True) is None
    assert steer(window, range(100)) == []
    assert window.on_time(now=1e6) is None


def test_quiet_time_does_not_count_where_steps_are_marked(hook):
    window = settled(hook("window").TraceWindow("auto"))
    window.on_step(1, False)
    assert window.on_time(now=90.0) is None


def test_why_a_window_never_opened(hook):
    make = hook("window").TraceWindow
    window = make("steps:5-6")
    steer(window, range(100, 110))
    assert (
        window.describe()["none"]
        == "steps 5-6 never began; the program went from 100 to 109"
    )
    assert "marked no steps" in make("auto").describe()["none"]
    assert "marked no steps" in make("steps:5-6").describe()["none"]
    window = settled(make("auto"))
    window.on_execution(10.1)
    assert (
        "executed more than 1 times since the last compilation"
        in window.describe()["none"]
    )
    assert "--window all" in window.describe()["remedy"]


def test_step_records_are_whole_lines_and_processes_do_not_mix(hook, tmp_path):
    place = SimpleNamespace(steps=str(tmp_path / "steps.jsonl"))
    first, second = (hook("records").StepWriter(place) for _ in range(2))
    first.note(3, 0.25, False, True)
    second.note(3, 0.5, True, False)
    first.write()
    second.write()
    assert json.loads((tmp_path / "steps.jsonl").read_text()) == {
        "step": 3,
        "step_time_s": 0.25,
        "compiled": True,
    }
    other = json.loads((tmp_path / f"steps.pid{os.getpid()}.jsonl").read_text())
    assert other == {"step": 3, "step_time_s": 0.5, "profiled": True}


@pytest.mark.parametrize(
    ("there", "after"),
    [
        ("", "--a=1 --b=2"),
        ("--c=3", "--a=1 --b=2 --c=3"),
        ("--b=9", "--a=1 --b=9"),  # the program's own wins
        ("--a=1 --b=2 --c=3", "--a=1 --b=2 --c=3"),
        ("flags.txt", "flags.txt"),  # names a file
    ],
)
def test_flags_that_a_program_replaces_are_added_again(hook, there, after):
    environ = {"XLA_FLAGS": there}
    hook("records").restore_flags(["--a=1", "--b=2"], environ)
    assert environ["XLA_FLAGS"] == after


def told(folder: Path, rank: Rank | None = None, **changes) -> dict:
    """What the launcher tells the hook of a profile stage in a folder, after a way through JSON."""
    options = {
        "capture": "none",
        "window": "none",
        "flags": (),
        "auto_pgle": False,
    } | changes
    return json.loads(
        json.dumps(
            hook_config(
                RunDirectory(folder).stage("profile"), rank or Rank(), **options
            )
        )
    )


SLURM = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}


def test_a_rank_is_found_by_the_hook_only_where_one_launcher_has_many(hook):
    place = hook("records").HookFiles
    stage = RunDirectory(Path("/f")).stage("profile")
    alone = place(told(Path("/f")), SLURM)
    assert (alone.steps, alone.trace) == (
        str(stage.rank(3).steps),
        str(stage.rank(3).trace),
    )
    assert place(told(Path("/f"), Rank(2, 4)), SLURM).facts == str(stage.rank(2).facts)
    inside = {
        "SLURM_PROCID": "0",
        "SLURM_STEP_NUM_TASKS": "1",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
    }
    assert (
        place(told(Path("/f")), inside).rank == 1
    )  # mpirun in an interactive step of one


def test_a_rank_that_only_the_program_knows_is_taken_from_jax(hook):
    place, stage = (
        hook("records").HookFiles(told(Path("/f")), {}),
        RunDirectory(Path("/f")).stage("profile"),
    )
    assert not place.join(lambda: (0, 4))
    assert place.join(lambda: (3, 4))
    assert (place.steps, place.trace) == (
        str(stage.rank(3).steps),
        str(stage.rank(3).trace),
    )
    assert (
        place.own_dump("--xla_dump_to=/f/profile/hlo")
        == "--xla_dump_to=/f/profile/hlo.rank0003"
    )
    assert (
        not hook("records").HookFiles(told(Path("/f")), SLURM).join(lambda: (0, 4))
    )  # a variable told it


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "--a=1 --xla_dump_to=/f/profile/hlo --b",
            "--a=1 --xla_dump_to=/f/profile/hlo.rank0003 --b",
        ),
        ('--xla_dump_to="/f/profile/hlo"', '--xla_dump_to="/f/profile/hlo.rank0003"'),
        (
            "--xla_dump_to=/f/profile/hlo.rank0003",
            "--xla_dump_to=/f/profile/hlo.rank0003",
        ),  # a child of the rank
        ("--xla_dump_to=/mine", "--xla_dump_to=/mine"),
    ],
)
def test_ranks_of_one_launcher_dump_into_folders_of_their_own(hook, before, after):
    environ = {**SLURM, "XLA_FLAGS": before, "JAX_DUMP_IR_TO": "/f/profile/ir"}
    hook("records").HookFiles(told(Path("/f")), environ).separate(environ)
    assert environ["XLA_FLAGS"] == after
    assert "JAX_DUMP_IR_TO" not in environ


def test_rank_0_dumps_where_it_was_told_to(hook):
    environ = {
        **SLURM,
        "SLURM_PROCID": "0",
        "XLA_FLAGS": "--xla_dump_to=/f/profile/hlo",
        "JAX_DUMP_IR_TO": "/f",
    }
    kept = dict(environ)
    hook("records").HookFiles(told(Path("/f")), environ).separate(environ)
    assert environ == kept


def test_compiler_messages_are_heard_and_not_shown(hook, caplog):
    facts = type("Facts", (), {"set": lambda self, name, value: None, "stale": False})()
    auto = hook("hook").AutoPgle(
        facts, SimpleNamespace(stages=SimpleNamespace(Lowered=None)), AUTO_PGLE
    )
    logger = logging.getLogger("jax._src.compiler")
    try:
        with caplog.at_level(logging.INFO):
            logger.debug(
                "Compiling module %s with FDO profile of length %d", "jit_step", 812
            )
    finally:
        logger.filters.clear()
        logger.setLevel(logging.NOTSET)
    assert auto.seen["recompiled"] == {"jit_step": 812}
    assert caplog.records == []


def in_python(
    code: str, config: dict, folder: Path
) -> subprocess.CompletedProcess[str]:
    stage = folder / "profile"
    stage.mkdir(exist_ok=True)
    environ = {
        **os.environ,
        "PYTHONPATH": str(HOOK_SITE),
        "PGLE_HOOK": json.dumps(told(folder, **config)),
    }
    environ["JAX_PLATFORMS"] = "cpu"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_imported_for_a_program_without_jax(tmp_path):
    code = "import sys; print(*sorted(name for name in sys.modules if name.startswith(('jax', 'pgle_hook.h'))))"
    assert in_python(code, {}, tmp_path).stdout == "\n"


COUNTED = """
import jax, jax.numpy as jnp, pgle_hook
traced = []
@jax.jit
def step(x):
    traced.append(1)
    return jnp.tanh(x @ x) + 1
x = jnp.eye(8)
executions = pgle_hook._hook.executions
seen = []
executions._on_execution = seen.append
for number in range(6):
    x = step(x)
counted = len(seen)
executions.counting = {counting}
for number in range(6):
    x = step(x)
print(counted, len(seen), len(traced), step._cache_size())
"""


@pytest.mark.parametrize(("counting", "after"), [(True, 12), (False, 6)])
def test_every_execution_of_the_heaviest_module_is_counted_while_that_is_wanted(
    tmp_path, counting, after
):
    done = in_python(COUNTED.format(counting=counting), {"window": "auto"}, tmp_path)
    assert done.stdout == f"6 {after} 1 1\n", done.stderr


def test_nothing_is_counted_where_no_window_is_wanted(tmp_path):
    code = "import jax; from jax._src import pjit; print(pjit._get_fastpath_data.__module__)"
    assert in_python(code, {"window": "none"}, tmp_path).stdout == "jax._src.pjit\n"


def test_a_broken_configuration_is_one_warning():
    environ = {**os.environ, "PYTHONPATH": str(HOOK_SITE), "PGLE_HOOK": "not json"}
    done = subprocess.run(
        [sys.executable, "-c", "print(1)"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr.count("\n") == 1
    assert "the capture hook did not start" in done.stderr


def test_a_disk_that_cannot_be_written_does_not_stop_the_program(tmp_path):
    code = """
import jax, shutil
with jax.profiler.StepTraceAnnotation("train", step_num=1):
    shutil.rmtree({folder!r})
    jax.numpy.ones(3) + 1
with jax.profiler.StepTraceAnnotation("train", step_num=2):
    pass
print("done")
"""
    done = in_python(
        code.format(folder=str(tmp_path / "profile")), {"window": "none"}, tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "the capture hook failed (FileNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_forked_child_does_not_write_into_its_parents_files(tmp_path):
    code = """
import jax, os
def step(number):
    with jax.profiler.StepTraceAnnotation("train", step_num=number):
        pass
step(1)
if os.fork() == 0:
    step(50); step(51)
    os._exit(0)
os.wait()
step(2)
"""
    assert in_python(code, {"window": "none"}, tmp_path).returncode == 0
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "profile/steps.jsonl").read_text().splitlines()
    ]
    assert steps == [1, 2]


def test_a_window_that_is_open_as_the_program_ends_is_written_though_python_starts_no_thread_then(
    tmp_path,
):
    code = """
import jax, threading
step = jax.jit(lambda x: x @ x)
x = step(jax.numpy.ones((9, 9))).block_until_ready()
def refused(thread):  # as Python 3.12 at its end
    raise RuntimeError("can't create new thread at interpreter shutdown")
threading.Timer.start = refused
"""
    done = in_python(code, {"capture": "jax", "window": "all"}, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_evaluation_steps_between_training_steps_are_not_counted(tmp_path):
    code = """
import jax
def step(name, number):
    with jax.profiler.StepTraceAnnotation(name, step_num=number):
        pass
for number in range(4):
    step("train", number)
    if number == 2:
        step("eval", 0)
"""
    assert in_python(code, {"window": "none"}, tmp_path).returncode == 0
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "profile/steps.jsonl").read_text().splitlines()
    ]
    assert steps == [0, 1, 2, 3]


def test_a_module_counts_by_itself(hook):
    window = settled(hook("window").TraceWindow("auto"))
    assert [window.on_execution(12.0, module) for module in "ababa"] == [None] * 4 + [
        "open"
    ]


@pytest.mark.parametrize(
    "ask", ["importlib.util.find_spec('jax')", "importlib.metadata.version('jax')"]
)
def test_a_program_may_ask_for_jax_before_it_imports_it(tmp_path, ask):
    code = f"import importlib.metadata, importlib.util, sys; {ask}; import jax, pgle_hook; print(pgle_hook.active())"
    assert "Hook object" in in_python(code, {"window": "none"}, tmp_path).stdout


def test_zeros_of_any_size_share_their_pages(hook, tmp_path):
    uncomputed = hook("capture").Uncomputed(
        str(tmp_path / "names"), lambda call: False, False
    )
    large, small = (
        uncomputed._zeros(shape, "float32") for shape in ((64, 1024), (3, 5))
    )
    assert np.shares_memory(large, small)
    assert (large.shape, small.shape, large.any()) == ((64, 1024), (3, 5), False)


def test_a_module_is_judged_by_what_all_devices_on_this_machine_do(hook, monkeypatch):
    uncomputed, private = hook("capture"), hook("jax_private")
    monkeypatch.setattr(private, "work_of", lambda call: (1e8, 1e6))
    monkeypatch.setattr(private, "hlo_of", lambda call: "")
    monkeypatch.setattr(private, "devices_of", int)
    assert [uncomputed._is_large(devices) for devices in (4, 512)] == [False, True]


def test_instructions_of_a_loop_count_as_often_as_it_goes_round(hook):
    text = """HloModule m
%body (p: s32[]) -> s32[] {
  %a = s32[] add(%p, %p)
  ROOT %f = s32[] fusion(%a), kind=kLoop, calls=%inside
}
%outer (p: s32[]) -> s32[] {
  ROOT %w = s32[] while(%p), condition=%c, body=%body, backend_config={"known_trip_count":{"n":"10"}}
}
%c (p: s32[]) -> pred[] {
  ROOT %lt = pred[] compare(%p, %p)
}
ENTRY %main (p: s32[]) -> s32[] {
  %v = s32[] while(%p), condition=%c, body=%outer, backend_config={"known_trip_count":{"n":"1000"}}
  ROOT %u = s32[] while(%v), condition=%c, body=%body
}
"""
    assert hook("capture").executed_in(text) == 2 + 1000 * (1 + 10 * 2) + 2


def test_shardings_are_not_propagated_by_the_release_that_crashes_over_them(
    hook, monkeypatch
):
    monkeypatch.setattr("jaxlib.version.__version__", "0.9.2")
    mesh = SimpleNamespace(operation=SimpleNamespace(name="sdy.mesh"))
    module = SimpleNamespace(body=SimpleNamespace(operations=[mesh]))
    assert hook("jax_private")._propagated(module) is None


def sources_of(folder, *words, code):
    """The files that a program's modules come from, by the hook, relative to its folder."""
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "inner.py").write_text("")
    (folder / "package" / "__main__.py").write_text(code)
    (folder / "train.py").write_text(code)
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "installed.py").write_text("")
    with zipfile.ZipFile(folder / "packed.zip", "w") as packed:
        packed.writestr("packed.py", "")
    path = os.pathsep.join([str(HOOK_SITE), "site-packages", "packed.zip"])
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return {str(Path(name).relative_to(folder)) for name in json.loads(done.stdout)}


SOURCES = """
import json, installed, packed
{imports}
from pgle_hook.records import Sources
print(json.dumps(Sources().found()))
"""


@pytest.mark.parametrize(
    ("words", "imports", "main"),
    [
        (["train.py"], "from package import inner", "train.py"),
        (["-m", "package"], "from . import inner", "package/__main__.py"),
    ],
)
def test_the_files_that_a_program_imports_are_those_of_its_own(
    tmp_path, words, imports, main
):
    found = sources_of(tmp_path, *words, code=SOURCES.format(imports=imports))
    assert found == {main, "package/__init__.py", "package/inner.py"}


PIECES = (
    "--a=1",
    "--b",
    "--c='x --d=2",
    "'",
    '--e="y\\" --f=3"',
    '--g="',
    "word",
    "\n-h",
)


@pytest.mark.parametrize("pieces", list(permutations(PIECES, 3)), ids=" ".join)
def test_the_hook_reads_the_names_of_flags_as_xla_does(hook, pieces):
    text = " ".join(("--first", *pieces))
    assert hook("records").names_of(text) == {
        flag.key for flag in parse_flags(text).flags
    }


def test_flags_inside_a_quoted_value_are_not_there(hook):
    environ = {"XLA_FLAGS": "--c='x --a=2'"}
    hook("records").restore_flags(["--a=1"], environ)
    assert environ["XLA_FLAGS"] == "--a=1 --c='x --a=2'"


def test_a_full_disk_leaves_the_file_from_before_and_no_part(
    hook, tmp_path, monkeypatch
):
    records = hook("records")
    records.write_json(str(tmp_path / "facts.json"), {"a": 1})

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.json, "dump", full)
    with pytest.raises(OSError, match="No space"):
        records.write_json(str(tmp_path / "facts.json"), {"a": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["facts.json"]
    assert json.loads((tmp_path / "facts.json").read_text()) == {"a": 1}


def test_a_plugin_that_finds_no_gpu_prints_no_traceback(hook, caplog) -> None:
    """jax logs it so, with the traceback; what else it logs stays."""
    log = logging.getLogger("jax._src.xla_bridge")
    before = list(log.filters)
    try:
        hook("jax_private").silence_plugins()
        log.error("Jax plugin configuration error: Exception when calling %s", "x")
        log.error("another error")
    finally:
        log.filters[:] = before
    assert [record.message for record in caplog.records] == ["another error"]
