"""Rehearsal with the real XLA:GPU compiler: inputs, fingerprints, verdicts and errors."""

from __future__ import annotations

import importlib.util
import lzma
import os
import select
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgle.costs.profile.files import read_profile
from pgle.errors import UserError
from pgle.run.compiler.cache import Cache
from pgle.run.compiler.compile import (
    Compiler,
    CompileRequest,
    CompileResult,
    compile_once,
)
from pgle.run.compiler.worker import check_disk
from pgle.run.confirm import ConfirmRequest, confirm
from pgle.xla.hlo.dumps import fingerprint_of, read_module
from pgle.xla.log.messages import SCHEDULER_MEMORY
from pgle.xla.log.read import collect, read_events
from pgle.xla.log.verdict import LogVerdict, ProfileUse, judge
from pgle.xla.targets import load_target

JAX = importlib.util.find_spec("jax_plugins") and any(
    importlib.util.find_spec(f"jax_plugins.{name}")
    for name in ("xla_cuda13", "xla_cuda12")
)
pytestmark = [
    pytest.mark.rehearse,
    pytest.mark.usefixtures("plugin_loaded_once"),
    pytest.mark.skipif(not JAX, reason="needs the CUDA plugin: pgle[rehearse-cuda13]"),
]

TARGET = load_target("a100-40gb")
LHS = "--xla_gpu_enable_latency_hiding_scheduler=true"
STEP = "jit_train_step"

Rehearse = Callable[..., CompileResult]


@pytest.fixture(scope="module")
def module() -> Path:
    folder = Path(__file__).parents[3] / "testdata/stablehlo"
    newest = sys.version_info >= (3, 12)
    return folder / (
        "fsdp_mlp_jax_0.12.0.1.mlir" if newest else "fsdp_mlp_jax_0.10.2.mlir"
    )


@pytest.fixture
def rehearse(tmp_path: Path, module: Path) -> Rehearse:
    def run(path: Path = module, **options: Any) -> CompileResult:
        options = {"flags": (LHS,), "dump_dir": tmp_path / "dump"} | options
        return compile_once(CompileRequest(path, TARGET.texts, **options))

    return run


@pytest.fixture(scope="module")
def baseline(module: Path, tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    dump = tmp_path_factory.mktemp("baseline") / "dump"
    return compile_once(CompileRequest(module, TARGET.texts, dump, flags=(LHS,)))


def test_dumps_go_into_the_folder_that_is_named_and_keep_no_token(
    rehearse: Rehearse, tmp_path: Path
) -> None:
    folder, token = tmp_path / "a \"b' c", "hf_" + "0Fake" * 6
    table = f"--xla_gpu_experimental_collective_perf_table_path={tmp_path}/{token}"
    assert (
        rehearse(
            dump_dir=folder, flags=(LHS, table), passes="before scheduling"
        ).module_name
        == STEP
    )
    (config,) = folder.glob("*.config.pbtxt")
    assert token not in config.read_text()
    assert f"{tmp_path}/***" in config.read_text()
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(("level", "has_lhs"), [("O0", False), ("O1", True)])
def test_level_o1_runs_the_latency_hiding_scheduler_on_ampere(
    rehearse: Rehearse, level: str, has_lhs: bool
) -> None:
    assert (
        rehearse(flags=(f"--jax_optimization_level={level}",)).schedule is not None
    ) is has_lhs


def test_the_scheduler_plans_with_what_the_jobs_allocator_has(
    rehearse: Rehearse, baseline: CompileResult
) -> None:
    small = rehearse(allocator_bytes=10 << 30)
    limits = []
    for compiled in (small, baseline):
        found = SCHEDULER_MEMORY.search(compiled.log.read_text())
        assert found is not None
        limits.append(int(found[2]) / 2**30)
    assert (
        limits[0] < 10 * 0.95 < limits[1] < 40 * 0.8 * 0.95
    )  # XLA's guess is four fifths of the GPU's 40 GiB


@pytest.fixture(scope="module")
def costs(baseline: CompileResult) -> str:
    """A profile with another cost for everything that the scheduler places."""
    scheduled = read_module(baseline.schedule or Path())
    names = [
        item.name
        for item in scheduled.entry_computation.instructions
        if item.opcode in ("fusion", "custom-call", "copy")
        or item.opcode.endswith("-start")
    ]
    return "".join(
        f'costs {{ name: "{name}" cost_us: {10 + i} }}\n'
        for i, name in enumerate(names)
    )


def verdict_of(result: CompileResult) -> LogVerdict:
    with result.log.open("rb") as log:
        return judge(collect(read_events(log)), whole=True)


def test_leaves_a_scheduled_module_and_a_schedule(baseline: CompileResult) -> None:
    found = read_module(baseline.after_optimizations)
    assert (found.name, found.is_scheduled, found.num_partitions) == (STEP, True, 4)
    assert found.fingerprint == baseline.fingerprint
    assert baseline.schedule is not None


def test_leaves_no_generated_code(baseline: CompileResult) -> None:
    assert {path.suffix for path in baseline.log.parent.iterdir()} & {
        ".ll",
        ".ptx",
    } == set()


def test_says_how_long_it_took(baseline: CompileResult) -> None:
    assert baseline.compile_s > 0


def names(module: Path) -> list[list[str]]:
    """The instructions of every computation, in the order of the schedule."""
    return [
        [item.name for item in each.instructions]
        for each in read_module(module).computations.values()
    ]


def test_a_session_reads_a_module_once_and_compiles_it_often(
    module: Path, tmp_path: Path
) -> None:
    unread = Path(shutil.copy(module, tmp_path))  # by no other test
    request = CompileRequest(unread, TARGET.texts, tmp_path / "0", flags=(LHS,))
    phases: list[tuple[str, str]] = []
    with (
        Compiler(
            on_phase=lambda phase: phases.append(
                (phase.request.dump_dir.name, phase.name)
            )
        ) as compiler,
        ThreadPoolExecutor(2) as pool,
    ):
        first = compiler.compile(request)
        others = list(
            pool.map(
                compiler.compile,
                [replace(request, dump_dir=tmp_path / name) for name in "12"],
            )
        )
    assert [folder for folder, phase in phases if phase == "reading"] == ["0"]
    assert [names(other.after_optimizations) for other in others] == [
        names(first.after_optimizations)
    ] * 2


def test_the_same_compilation_is_made_once(
    module: Path, costs: str, tmp_path: Path
) -> None:
    results = []
    for name in "12":
        profile = tmp_path / f"{name}.pbtxt"
        profile.write_text(costs)
        request = CompileRequest(
            module, TARGET.texts, tmp_path / name, flags=(LHS,), profile=profile
        )
        with Compiler(cache=Cache(tmp_path / "cache", 1 << 30)) as compiler:
            results.append(compiler.compile(request))
    made, kept = results
    assert (made.is_cached, kept.is_cached) == (False, True)
    assert names(kept.after_optimizations) == names(made.after_optimizations)
    assert (kept.fingerprint, kept.memory, kept.compile_s) == (
        made.fingerprint,
        made.memory,
        made.compile_s,
    )
    assert verdict_of(kept).main.profile == str(tmp_path / "2.pbtxt")


CLIENT = """
import sys
from pathlib import Path
from pgle.run.compiler.compile import Compiler
from pgle.run.compiler.compile import CompileRequest
from pgle.xla.targets import load_target
def phase(phase):
    print(phase.name, compiler.process.child.pid, flush=True)
compiler = Compiler(on_phase=phase)
compiler.compile(CompileRequest(Path(sys.argv[1]), load_target("a100").texts, Path(sys.argv[2])))
"""


def test_a_killed_client_leaves_no_process(module: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-c", CLIENT, str(module), str(tmp_path / "dump")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        worker = int(
            next(
                line for line in client.stdout if line.startswith("optimising")
            ).split()[1]
        )
        children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        left = [os.pidfd_open(pid) for pid in (worker, *map(int, children))]
        client.kill()
    assert len(left) == 2
    for process in left:
        ended, _, _ = select.select([process], [], [], 60)
        os.close(process)
        assert ended


def test_memory_covers_the_arguments(baseline: CompileResult) -> None:
    arguments = (
        (4 * 1024 * 4096 + 512 * 1024) * 2 // 4
    )  # four bf16 weights and the batch, on four devices
    assert baseline.memory["argument"] == arguments
    assert (baseline.memory_bytes or 0) > arguments


CASES: dict[str, tuple[str, Callable[[str, str], str], ProfileUse]] = {
    "used": ("p.pbtxt", lambda costs, fp: costs, ProfileUse.USED),
    "used with fingerprints": (
        "p.pbtxt",
        lambda costs, fp: costs.replace('"', f'"{fp}::', 1),
        ProfileUse.USED,
    ),
    "empty file": ("p.pbtxt", lambda costs, fp: "", ProfileUse.USED_WITHOUT_MATCHES),
    "wrong fingerprint": (
        "p.pbtxt",
        lambda costs, fp: costs.replace('name: "', f'name: "{"0" * 32}::'),
        ProfileUse.USED_WITHOUT_MATCHES,
    ),
    "wrong extension": ("p.txt", lambda costs, fp: costs, ProfileUse.NOT_USED),
    "text in a binary file": ("p.pb", lambda costs, fp: costs, ProfileUse.WRONG_FORMAT),
    "broken text": (
        "p.pbtxt",
        lambda costs, fp: costs + "costs {",
        ProfileUse.WRONG_FORMAT,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_verdict_with_the_real_compiler(
    case: str, rehearse: Rehearse, baseline: CompileResult, costs: str, tmp_path: Path
) -> None:
    name, change, expected = CASES[case]
    profile = tmp_path / name
    profile.write_text(change(costs, baseline.fingerprint))
    assert verdict_of(rehearse(profile=profile)).main.verdict is expected


def test_verdict_on_a_wrong_path(rehearse: Rehearse, tmp_path: Path) -> None:
    main = verdict_of(rehearse(profile=tmp_path / "missing.pbtxt")).main
    assert (main.verdict, main.why) == (
        ProfileUse.NOT_USED,
        "the profile file does not exist",
    )


def test_a_schedule_dump_alone_is_proof(
    rehearse: Rehearse, baseline: CompileResult, costs: str, tmp_path: Path
) -> None:
    profile, silence = tmp_path / "p.pbtxt", tmp_path / "silent.log"
    profile.write_text(costs)
    silence.write_text("")
    with_profile = rehearse(profile=profile)
    verdicts = [
        confirm(
            ConfirmRequest(
                silence, schedule=result.schedule, profile=read_profile(profile)
            )
        ).main.verdict
        for result in (with_profile, baseline)
    ]
    assert verdicts == [ProfileUse.USED, ProfileUse.NOT_USED]


def test_verdict_without_the_scheduler(
    rehearse: Rehearse, costs: str, tmp_path: Path
) -> None:
    profile = tmp_path / "p.pbtxt"
    profile.write_text(costs)
    result = rehearse(
        profile=profile, flags=("--xla_gpu_enable_latency_hiding_scheduler=false",)
    )
    older = tuple(int(part) for part in result.jaxlib.split(".")) < (0, 11, 2)
    assert verdict_of(result).main.verdict is (
        ProfileUse.USED if older else ProfileUse.NOT_USED
    )


def test_a_profile_leaves_the_fingerprint_alone(
    rehearse: Rehearse, baseline: CompileResult, costs: str, tmp_path: Path
) -> None:
    profile = tmp_path / "with blank.pbtxt"
    profile.write_text(costs)
    result = rehearse(profile=profile)
    assert result.fingerprint == baseline.fingerprint
    assert verdict_of(result).main.verdict is ProfileUse.USED


def test_compressed_text(
    rehearse: Rehearse, baseline: CompileResult, module: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "step.mlir.xz"
    packed.write_bytes(lzma.compress(module.read_bytes()))
    assert rehearse(packed).fingerprint == baseline.fingerprint


def test_bytecode(
    rehearse: Rehearse, baseline: CompileResult, module: Path, tmp_path: Path
) -> None:
    path = tmp_path / "step.mlirbc"
    write = (
        "import sys\nfrom jax._src.interpreters import mlir\nfrom jax._src.lib.mlir import ir\n"
        "with mlir.make_ir_context():\n"
        "    module = ir.Module.parse(open(sys.argv[1]).read())\n"
        "    open(sys.argv[2], 'wb').write(mlir.module_to_bytecode(module))\n"
    )
    subprocess.run([sys.executable, "-c", write, module, path], check=True)
    assert rehearse(path).fingerprint == baseline.fingerprint


def test_hlo_before_optimizations_keeps_its_collectives(
    rehearse: Rehearse, baseline: CompileResult
) -> None:
    (before,) = baseline.log.parent.glob("*.before_optimizations.hlo.pb")
    result = rehearse(before)
    found = read_module(result.after_optimizations)
    assert (result.num_devices, found.num_partitions) == (4, 4)
    assert {"all-reduce", "all-gather"} <= {
        item.opcode.removesuffix("-start") for item in found.walk()
    }


def test_the_module_of_a_job_is_compiled_as_in_the_job(
    rehearse: Rehearse, tmp_path: Path
) -> None:
    job, target = tmp_path / "job", tmp_path / "target.pbtxt"
    job.mkdir()
    target.write_text(TARGET.text)
    environment = {
        key: value for key, value in os.environ.items() if key != "XLA_FLAGS"
    }
    script = Path(__file__).with_name("rehearsal_job.py")
    subprocess.run([sys.executable, script, job, target], check=True, env=environment)
    (dumped,) = job.glob("jax_ir*_jit_step_compile.mlir")
    (compiled,) = job.glob("*.jit_step.*gpu_after_optimizations.hlo.pb")
    result = rehearse(dumped, flags=())
    assert names(result.after_optimizations) == names(compiled)
    assert fingerprint_of(compiled) == read_module(compiled).fingerprint
    if tuple(map(int, result.jaxlib.split("."))) < (
        0,
        11,
    ):  # later ones are told to try no kernels
        assert result.fingerprint == fingerprint_of(compiled)


@pytest.mark.minutes
def test_a_dump_of_2024_compiles(rehearse: Rehearse, testdata: Path) -> None:
    dump = (
        testdata
        / "pax_fsdp4/proc0/dump/module_0040.pjit__wrapped_step_fn.before_optimizations.hlo.pb.xz"
    )
    result = rehearse(dump)
    assert (result.module_name, result.num_devices) == ("pjit__wrapped_step_fn", 4)
    assert result.schedule is not None


def test_topology_of_another_size(rehearse: Rehearse) -> None:
    with pytest.raises(
        UserError,
        match=r"partitioned for 4 devices and topology 1x1x8 has 8; say --devices 4; for 8 .*: --devices 8 --",
    ):
        rehearse(topology="1x1x8")


def test_topology_over_two_hosts(rehearse: Rehearse) -> None:
    assert rehearse(topology="1x2x2").num_devices == 4


def test_refused_flag(rehearse: Rehearse) -> None:
    with pytest.raises(
        UserError, match=r"this XLA refuses a flag: .*--xla_gpu_no_such_flag=1"
    ):
        rehearse(flags=("--xla_gpu_no_such_flag=1",))


def test_refused_value(rehearse: Rehearse) -> None:
    with pytest.raises(UserError, match=r"refuses a flag|refuses the value of a flag"):
        rehearse(flags=("--xla_gpu_pgle_accuracy_checker=off",))


def test_failing_compilation_gives_xlas_own_line(
    rehearse: Rehearse, tmp_path: Path
) -> None:
    profile = tmp_path / "p.pbtxt"
    profile.write_text("")
    strict = "--xla_gpu_pgle_accuracy_checker=PGLE_STRICTNESS_LEVEL_ERROR"
    with pytest.raises(
        UserError,
        match=r"missing instructions. Discarding the profile|Failed to get configs",
    ):
        rehearse(profile=profile, flags=(LHS, strict))


def test_no_mlir(rehearse: Rehearse, tmp_path: Path) -> None:
    path = tmp_path / "step.mlir"
    path.write_text("module @x {\n  this is no operation\n}\n")
    with pytest.raises(
        UserError, match=r"step.mlir: StableHLO that this jax cannot parse"
    ):
        rehearse(path)


def test_description_of_no_gpu(module: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not understand this GPU description"):
        compile_once(CompileRequest(module, ("nonsense: 1",), tmp_path / "dump"))


def test_every_shipped_target_is_accepted_by_this_jax() -> None:
    script = (
        "from pgle.run.ask.jax_private import Plugin\nfrom pgle.xla.targets import BUILT_IN, load_target\n"
        "from pgle.xla.vendors import NVIDIA\nplugin = Plugin(NVIDIA)\n"
        "targets = [load_target(name) for name in BUILT_IN]\n"
        "for target in targets:\n"
        "    if target.vendor is NVIDIA:\n"
        "        plugin.topology(target.text, '1x1x2')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_dump_at_the_limit_of_a_files_size_was_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda _: (4, 8))
    (tmp_path / "xla.log").write_bytes(b"123")
    check_disk(tmp_path)
    (tmp_path / "xla.log").write_bytes(b"1234")
    with pytest.raises(
        UserError,
        match=r"xla.log: cut short at 4 bytes, .* raise that limit: ulimit -f unlimited",
    ):
        check_disk(tmp_path)
