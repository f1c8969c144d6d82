"""What a rehearsal compiles: flags of the environment, whose jaxlib, which file."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.requests.shared import ForCompiler
from pgle.run.ask.jaxlib import installed
from pgle.run.capture.captured import CapturedProgram
from pgle.run.process.memory import memory_fraction
from pgle.run.rehearse_program import RehearseRequest, settle, with_hosts_flag
from pgle.xla.targets import load_target

OURS = CapturedProgram(
    sys.executable, sys.version_info[:3], installed().jaxlib, plugin=True
)


@pytest.fixture
def settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The setting of a module file."""
    module = tmp_path / "step.mlir"
    module.touch()

    def settled(
        environment: str = "", *flags: str, program: CapturedProgram = OURS
    ) -> RehearseRequest:
        monkeypatch.setenv("XLA_FLAGS", environment)
        asked = ForCompiler(flags=flags)
        return settle([module], asked, program, load_target("h100"), tmp_path)

    return settled


def test_flags_of_the_environment_come_before_those_of_the_command_line(
    settled,
) -> None:
    slop = "--xla_gpu_memory_limit_slop_factor"
    assert settled(f"{slop}=90", f"{slop}=95").flags == (f"{slop}=90", f"{slop}=95")


def test_flags_that_the_program_sets_come_after_those_of_the_environment(
    settled,
) -> None:
    slop, cpu = (
        "--xla_gpu_memory_limit_slop_factor",
        "--xla_force_host_platform_device_count=2",
    )
    program = replace(OURS, xla_flags=f"{slop}=95 {cpu} --xla_gpu_no_such_flag=1")
    setting = settled(f"{slop}=90", program=program)
    assert setting.flags == (f"{slop}=90", f"{slop}=95")
    assert [
        line
        for line in setting.warnings
        if "xla_gpu_no_such_flag" in line and line.endswith("(left out)")
    ]


def test_levels_of_effort_and_options_of_the_compilation_count_as_flags(
    settled, monkeypatch
) -> None:
    monkeypatch.setenv("JAX_OPTIMIZATION_LEVEL", "O2")
    options = {
        "step.mlir": [
            ["jax_optimization_level", "O1"],
            ["xla_gpu_enable_triton_gemm", "false"],
        ]
    }
    asked = ("--jax_optimization_level=O1", "--xla_gpu_enable_triton_gemm=false")
    setting = settled(
        "", "--jax_optimization_level=O3", program=replace(OURS, options=options)
    )
    assert setting.flags == (
        "--jax_optimization_level=O2",
        *asked,
        "--jax_optimization_level=O3",
    )
    assert setting.warnings == ()


def test_what_is_about_dumps_or_cpus_is_left_out(settled) -> None:
    environment = "--xla_dump_hlo_as_text --xla_force_host_platform_device_count=8 --xla_gpu_enable_triton_gemm=false"
    assert settled(environment).flags == ("--xla_gpu_enable_triton_gemm=false",)


def test_a_profile_in_the_environment_gives_way(settled) -> None:
    setting = settled("--xla_gpu_pgle_profile_file_or_directory_path=/p.pbtxt")
    assert setting.flags == ()
    assert setting.warnings == (
        "--xla_gpu_pgle_profile_file_or_directory_path of XLA_FLAGS is left out; give the profile with --profile",
    )


@pytest.mark.parametrize(
    ("environment", "flags", "where"),
    [
        (
            "--xla_gpu_no_such_flag=1",
            (),
            "XLA_FLAGS: --xla_gpu_no_such_flag: .* does not know it",
        ),
        (
            "",
            ("--xla_gpu_no_such_flag=1",),
            "--flag --xla_gpu_no_such_flag: .* does not know it",
        ),
        (
            "",
            ("--xla_dump_to=/tmp/x",),
            "--flag --xla_dump_to=/tmp/x: rehearse sets this flag itself; give",
        ),
        (
            "",
            ("xla_gpu_x=1",),
            "--flag xla_gpu_x=1: does not begin with --; write --flag=--name=value",
        ),
    ],
)
def test_flags_over_which_xla_would_end(
    settled, environment: str, flags: tuple[str, ...], where: str
) -> None:
    with pytest.raises(UserError, match=where):
        settled(environment, *flags)


def test_the_programs_own_jaxlib_compiles(settled, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert settled(program=replace(OURS, python=str(python))).python == str(python)


def test_another_jaxlib_than_the_programs_is_said(settled) -> None:
    setting = settled(
        program=CapturedProgram("/venv/bin/python", (3, 12, 1), "0.9.0", plugin=False)
    )
    assert setting.python == sys.executable
    (said,) = setting.warnings
    assert said.startswith(
        "the program runs jaxlib 0.9.0 (/venv/bin/python has no CUDA plugin), and pgle's jaxlib"
    )


def test_a_program_of_our_jaxlib_needs_no_word(settled) -> None:
    setting = settled(program=replace(OURS, python="/venv/bin/python", plugin=False))
    assert (setting.python, setting.warnings) == (sys.executable, ())


@pytest.mark.parametrize(
    ("environment", "fraction"),
    [
        ({}, 0.75),
        ({"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9"}, 0.9),
        (
            {
                "XLA_CLIENT_MEM_FRACTION": "0.92",
                "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.9",
            },
            0.92,
        ),
        (
            {
                "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
                "XLA_CLIENT_MEM_FRACTION": "0.92",
            },
            0.0,
        ),
    ],
)
def test_the_allocators_part_of_the_memory(
    environment: dict[str, str], fraction: float
) -> None:
    assert memory_fraction(environment) == fraction


@pytest.mark.parametrize("value", ["most", "nan", "inf", "-1"])
def test_what_is_no_part_of_a_memory(value: str) -> None:
    with pytest.raises(
        UserError,
        match=f"XLA_CLIENT_MEM_FRACTION={value}: must be a number above 0; set 0.75, jax's default",
    ):
        memory_fraction({"XLA_CLIENT_MEM_FRACTION": value})


@pytest.mark.parametrize(
    ("target", "topology", "network", "options"),
    [
        ("h100", "2x1x8", None, None),  # as XLA assumes
        ("h100", "1x1x4", 25.0, None),  # nothing crosses hosts
        ("h100", "1x4x4", None, "gpus_per_node=4"),
        ("h100", "1x4x8", 25.0, "nic_speed_gbps=25"),
        ("gb200", "1x16x4", None, "gpus_per_node=64"),
        ("gb200", "2x16x4", 12.5, "gpus_per_node=64,nic_speed_gbps=12.5"),
    ],
)
def test_xlas_own_model_gets_hosts_and_network(
    settled, target, topology, network, options
) -> None:
    setting = with_hosts_flag(
        replace(
            settled(),
            target=load_target(target),
            topology=topology,
            asked=ForCompiler(network_gb_s=network),
        )
    )
    flag = f"--xla_gpu_analytical_latency_estimator_options={options}"
    assert setting.flags == ((flag,) if options else ())
    assert [flag in line for line in setting.warnings] == [True] * bool(options)


def test_the_users_own_options_of_xlas_model_stay(settled) -> None:
    given = settled("", "--xla_gpu_analytical_latency_estimator_options=rtt_us=20")
    given = replace(given, target=load_target("gb200"), topology="1x16x4")
    assert with_hosts_flag(given) is given
