"""The environment of a child: the user's values stay, ours are added and said."""

import pytest

from pgle.errors import UserError
from pgle.run.ask.jaxlib import Installed
from pgle.run.process import compilers
from pgle.run.process.compilers import interpreter
from pgle.run.process.environment import build_environment
from pgle.run.process.flags import given_flags, user_flags
from pgle.xla.flags.text import parse_flags
from pgle.xla.vendors import NVIDIA

LHS = "xla_gpu_enable_latency_hiding_scheduler"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def build(mode="async", environ=None, **options):
    return build_environment(mode, environ=environ or {}, **options)


def codes(built):
    return {warning.code for warning in built.warnings}


def test_everything_of_the_users_is_still_there():
    environ = {
        "HOME": "/home/me",
        "XLA_FLAGS": "--xla_dump_to=/mine",
        "NCCL_DEBUG": "INFO",
    }
    built = build(environ=environ)
    assert {name: built.values[name] for name in ("HOME", "NCCL_DEBUG")} == {
        "HOME": "/home/me",
        "NCCL_DEBUG": "INFO",
    }
    assert built.values["XLA_FLAGS"].split()[-1] == "--xla_dump_to=/mine"


def test_the_users_environment_is_not_touched():
    environ = {"XLA_FLAGS": "--xla_dump_to=/mine"}
    build(environ=environ)
    assert environ == {"XLA_FLAGS": "--xla_dump_to=/mine"}


def test_the_users_log_level_stays_and_is_warned_about():
    built = build(environ={"TF_CPP_MIN_LOG_LEVEL": "2"})
    assert built.values["TF_CPP_MIN_LOG_LEVEL"] == "2"
    assert "log-level" in codes(built)


def test_the_compilation_cache_is_off_by_default():
    assert build().values["JAX_ENABLE_COMPILATION_CACHE"] == "false"


def test_the_compilation_cache_can_be_moved(tmp_path):
    environ = {"JAX_COMPILATION_CACHE_DIR": "/shared"}
    moved = build(environ=environ, cache=tmp_path)
    assert moved.values["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path)


def test_dumps_go_where_the_run_wants_them():
    built = build(dump_to="/run/dump", stablehlo_to="/run/ir")
    assert parse_flags(built.values["XLA_FLAGS"]).value("xla_dump_to") == "/run/dump"
    assert built.values["JAX_DUMP_IR_TO"] == "/run/ir"


def test_flags_of_the_command_line_win_over_those_of_the_environment():
    built = build(
        environ={"XLA_FLAGS": "--xla_gpu_autotune_level=1"},
        more_flags=["--xla_gpu_autotune_level=0"],
    )
    assert parse_flags(built.plan.xla_flags).value("xla_gpu_autotune_level") == "0"


def test_a_compilation_with_dumps_of_its_own_leaves_the_users_out_and_says_so():
    flags = given_flags(
        {"XLA_FLAGS": "--xla_dump_to=/mine --xla_gpu_autotune_level=1"}, own_dumps=True
    )
    assert flags.text == "--xla_gpu_autotune_level=1"
    assert [finding.flag for finding in flags.findings] == ["xla_dump_to"]


@pytest.mark.parametrize("value", ["/a b", "'/a b'"])
def test_more_flags_keep_blanks_in_their_values_quoted_or_not(value):
    assert (
        given_flags({}, [f"--xla_gpu_cuda_data_dir={value}"]).value(
            "xla_gpu_cuda_data_dir"
        )
        == "/a b"
    )


def test_a_level_of_effort_reaches_the_program_as_jax_reads_it():
    built = build(
        environ={"JAX_OPTIMIZATION_LEVEL": "O3"},
        more_flags=["--jax_optimization_level=O1"],
    )
    assert built.values["JAX_OPTIMIZATION_LEVEL"] == "O1"
    assert (
        "jax_optimization_level" not in built.values["XLA_FLAGS"]
    )  # XLA would end the program over it
    assert built.flags.value("jax_optimization_level") == "O1"


def test_a_level_that_jax_does_not_have_is_refused():
    with pytest.raises(
        UserError,
        match="JAX_OPTIMIZATION_LEVEL=O9: jax does not take this value; give a level from O0 to O3",
    ):
        build(environ={"JAX_OPTIMIZATION_LEVEL": "O9"})


def test_what_is_no_flag_is_refused():
    with pytest.raises(UserError, match="does not begin with --"):
        given_flags({}, ["xla_gpu_autotune_level=0"])


def test_the_users_unknown_flag_is_an_error_before_the_run():
    built = build(environ={"XLA_FLAGS": "--xla_gpu_no_such_flag"})
    found = next(warning for warning in built.warnings if warning.code == "unknown")
    assert (found.level, found.flag) == ("error", "xla_gpu_no_such_flag")


def test_a_flag_of_ours_that_jaxlib_rejects_is_left_out(monkeypatch):
    from pgle.run.ask.jaxlib import FlagAnswer, Probe
    from pgle.run.process import environment

    def rejecting(flags, python):
        words = "Unknown flag in XLA_FLAGS: x"
        unknown, known = FlagAnswer("unknown", words), FlagAnswer("known")
        status = {flag.text: unknown if flag.name == LHS else known for flag in flags}
        return Probe("9.9", status)

    monkeypatch.setattr(environment, "probe", rejecting)
    built = build()
    assert LHS not in built.values["XLA_FLAGS"]
    assert "left-out" in codes(built)


def test_flags_in_a_file_are_read(tmp_path):
    path = tmp_path / "flags.txt"
    path.write_text("--xla_dump_to=/mine\n--xla_gpu_autotune_level=0\n")
    built = build(environ={"XLA_FLAGS": str(path)})
    assert parse_flags(built.values["XLA_FLAGS"]).value("xla_dump_to") == "/mine"
    assert "file" in codes(built)


def test_a_missing_flag_file_is_one_line():
    with pytest.raises(UserError, match="so XLA reads it as a file: no such file"):
        user_flags({"XLA_FLAGS": "xla_gpu_autotune_level=0"})


def test_a_flag_file_without_flags_counts_for_nothing(tmp_path):
    path = tmp_path / "flags.txt"
    path.write_text("other.txt")
    flags = user_flags({"XLA_FLAGS": str(path)})
    assert (flags.flags, flags.findings[-1].level) == ((), "error")


def test_auto_pgle_in_the_environment_is_warned_about():
    assert "auto-pgle" in codes(build(environ={"JAX_ENABLE_PGLE": "true"}))


@pytest.mark.parametrize(
    ("theirs", "python", "warned"),
    [
        (
            {"jaxlib": "0.9.0", "jax-cuda12-pjrt": "0.9.0"},
            "/opt/python3",
            False,
        ),  # can compile for GPUs itself
        ({"jaxlib": "0.9.0"}, None, True),
        ({"jaxlib": "0.10.2"}, None, False),
        ({}, None, False),
    ],
)
def test_the_programs_own_jaxlib_compiles_or_that_is_said(
    monkeypatch, theirs, python, warned
):
    asked = {None: Installed({"jaxlib": "0.10.2"}), "/opt/python3": Installed(theirs)}
    monkeypatch.setattr(compilers, "installed", asked.get)
    monkeypatch.setattr(compilers.shutil, "which", lambda name: f"/opt/{name}")
    found, warnings = compilers.compiler_of(["python3", "train.py"], NVIDIA)
    assert found == python
    assert [
        "jaxlib 0.9.0" in line and "jaxlib 0.10.2" in line for line in warnings
    ] == [True] * warned


@pytest.mark.parametrize(
    ("name", "is_python"),
    [("python3.11", True), ("python-job.sh", False), ("bash", False)],
)
def test_a_job_that_is_called_python_is_not_started_to_ask_it_about_flags(
    tmp_path, name, is_python
):
    program = tmp_path / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert interpreter((str(program), "train.py")) == (
        str(program) if is_python else None
    )
