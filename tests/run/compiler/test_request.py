"""Rehearsal without compiling: requests, and compilers that do not start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.run.compiler.compile import (
    Compiler,
    CompileRequest,
    compile_once,
    flags_without_gpu,
    xla_flags,
)
from pgle.xla.flags.text import parse_flags
from pgle.xla.hlo.dumps import fingerprint_of


@pytest.fixture
def request_for(tmp_path: Path) -> CompileRequest:
    module = tmp_path / "step.mlir"
    module.write_text("module @step {}")
    return CompileRequest(module, ("target",), tmp_path / "dump")


def changed(request: CompileRequest, **changes: object) -> CompileRequest:
    from dataclasses import replace

    return replace(request, **changes)  # type: ignore[arg-type]


def test_own_flags_come_first_so_that_the_users_win(
    request_for: CompileRequest,
) -> None:
    flags = xla_flags(
        changed(request_for, flags=("--xla_dump_hlo_as_proto=false",)), Path("/d")
    ).split()
    assert flags == [
        "--xla_dump_to=/d",
        "--xla_dump_hlo_as_proto=true",
        "--xla_dump_latency_hiding_schedule=true",
        "--xla_dump_hlo_pass_re=^fusion-wrapper$",
        "--xla_dump_hlo_as_proto=false",
    ]


def test_passes_that_only_try_kernels_are_left_out_but_where_passes_are_listed_as_xla_takes_no_two_lists() -> (
    None
):
    others, listed = (
        "--xla_disable_hlo_passes=rematerialization",
        "--xla_enable_hlo_passes_only=dce,autotuner,cse",
    )
    fitted = flags_without_gpu("0.12.0.1", others)
    assert "--xla_disable_hlo_passes=config-assigner " in fitted
    assert fitted.endswith(others)
    assert flags_without_gpu("0.12.0.1", listed).endswith(
        " --xla_enable_hlo_passes_only=dce,cse"
    )
    assert flags_without_gpu("0.10.2", listed) == listed


@pytest.mark.parametrize(
    "name", ["/a b", "/a 'b", '/a "b', "/a \"b'c", '/a\\ "b', "/a --xla_b=1"]
)
def test_xla_reads_the_folder_that_is_meant(
    request_for: CompileRequest, name: str
) -> None:
    assert parse_flags(xla_flags(request_for, Path(name))).value("xla_dump_to") == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": Path("nowhere.mlir")}, "nowhere.mlir: no such file"),
        ({"topology": "8"}, "topology '8' is not SLICESxHOSTSxDEVICES; write 1x1x8"),
        ({"topology": "0x1x4"}, "is not SLICESxHOSTSxDEVICES"),
        (
            {"topology": "99999x99999x99999"},
            "has 999,970,000,299,999 devices, more than a rehearsal takes",
        ),
        ({"flags": ("xla_x=1",)}, "does not begin with --"),
    ],
)
def test_requests_that_cannot_be(
    request_for: CompileRequest, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        compile_once(changed(request_for, **changes))


def test_a_python_that_is_not_there(request_for: CompileRequest) -> None:
    with pytest.raises(UserError, match="/nowhere/python: cannot start Python"):
        compile_once(request_for, python="/nowhere/python")


def test_a_used_folder_is_left_alone(request_for: CompileRequest) -> None:
    request_for.dump_dir.mkdir()
    (request_for.dump_dir / "old.txt").write_text("old")
    with pytest.raises(UserError, match=r"is not empty; choose a new folder"):
        compile_once(request_for)
    assert [path.name for path in request_for.dump_dir.iterdir()] == ["old.txt"]


def python_that(tmp_path: Path, script: str) -> str:
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_a_python_without_jax(request_for: CompileRequest, tmp_path: Path) -> None:
    bare = python_that(tmp_path, f'exec "{sys.executable}" -S "$@"')
    with pytest.raises(UserError, match=r"jax cannot be imported .*pip install jax"):
        compile_once(request_for, python=bare)


def test_a_python_that_dies(request_for: CompileRequest, tmp_path: Path) -> None:
    broken = python_that(tmp_path, "echo about to die >&2\nkill -SEGV $$")
    with pytest.raises(
        UserError, match=r"python: the compiler's process does not start: about to die"
    ):
        compile_once(request_for, python=broken)


HELLO = """echo '{"jaxlib": "0.12.0.1"}'\nread request\n"""


def test_a_compiler_that_dies(request_for: CompileRequest, tmp_path: Path) -> None:
    request_for.dump_dir.mkdir()
    dies = f"{HELLO}echo out of luck > {request_for.dump_dir}/xla.log\nkill -SEGV $$"
    with pytest.raises(
        UserError, match=r"crashed \(signal 11\): out of luck; the whole log: .*xla.log"
    ):
        compile_once(request_for, python=python_that(tmp_path, dies))


@pytest.mark.parametrize(
    "said",
    [
        "step.py:3:1: error: 'stablehlo.dynamic_broadcast_in_dim' op can't be translated to XLA HLO",
        "during context [hlo verifier]: Unbounded dynamism is disabled for instruction: %p = f32[?,512] parameter(0)",
    ],
)
def test_sizes_that_are_known_only_as_it_runs(
    said: str, request_for: CompileRequest, tmp_path: Path
) -> None:
    answer = f"""printf '%s\\n' '{{"id": 1, "answer": {{"xla_error": "{said.replace("'", "")}"}}}}'\nread end"""
    with pytest.raises(
        UserError,
        match=r"known only as it runs \(.*\); export or lower it with numbers",
    ):
        compile_once(request_for, python=python_that(tmp_path, HELLO + answer))


def test_a_compiler_that_was_ended_does_not_start_again(
    request_for: CompileRequest, tmp_path: Path
) -> None:
    with Compiler(python_that(tmp_path, "echo started >&2")) as compiler:
        pass
    with pytest.raises(UserError, match=r"the compiler has been ended"):
        compiler.compile(request_for)


def test_fingerprint_of_a_real_dump(testdata: Path) -> None:
    # testdata/pax_fsdp4/README.md: processes 0 and 3 differ
    name = "dump/module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
    found = [
        fingerprint_of(testdata / "pax_fsdp4" / process / name)
        for process in ("proc0", "proc3")
    ]
    assert found == [
        "25fa0b3e673a92036f22550cd7bcb068",
        "04555b1419fd4e5b8933dc47fbf80dbb",
    ]
