"""`pgle rehearse` with the real compiler: a program that a profile helps, and one that it
cannot.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pgle.cli.main import run

pytestmark = [pytest.mark.rehearse, pytest.mark.usefixtures("plugin_loaded_once")]


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("PGLE_CACHE_MIB", "0")


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """StableHLO of two workloads, as jax dumps it."""
    folder = tmp_path_factory.mktemp("programs")

    def dump(name: str) -> Path:
        if not (folder / name).exists():
            from pgle.run.capture.capture import Devices, capture_modules
            from pgle.xla.targets import load_target

            program = Path(__file__).parents[2] / f"benchmarks/programs/{name}.py"
            where = (
                [str(program)] if program.exists() else ["-m", "pgle.workloads", name]
            )
            words = [sys.executable, *where, "--compile-only"]
            capture_modules(
                words,
                folder / name,
                target=load_target("h100"),
                devices=Devices(4),
                quiet_s=60,
            )
        return next((folder / name).glob("*.mlir"))

    return dump


@pytest.fixture
def rehearse(capsys, tmp_path):
    def call(*arguments: object, is_bound: bool = False) -> dict:
        code = run(
            ["rehearse", "-o", str(tmp_path / "out"), "--json", *map(str, arguments)]
        )
        captured = capsys.readouterr()
        assert code == int(is_bound), captured.err
        return json.loads(captured.out)

    return call


def test_the_overlap_workload_gets_better_and_its_gathers_move(programs, rehearse):
    result = rehearse(programs("overlap"), "--target", "a100")
    assert result["schema"] == "pgle.rehearse/1"
    assert result["used"]
    assert result["costs_are"] == "estimated"
    assert result["profiled"]["step_us"] < 0.98 * result["baseline"]["step_us"]
    assert result["profiled"]["exposed_us"] < 0.1 * result["baseline"]["exposed_us"]
    assert "all-gather-start" in {move["name"] for move in result["moved"]}
    kinds = [item["kind"] for item in result["account"]["opportunities"]]
    assert kinds[0] == "latency-hiding scheduler"
    assert "profile" in kinds
    assert result["verdict"].startswith(result["account"]["opportunities"][0]["title"])


def test_where_xla_runs_no_lhs_by_itself_its_own_schedule_is_shown_too(
    programs, rehearse
):
    result = rehearse(programs("overlap"), "--target", "a100")
    assert result["default"]["schedule"] is None  # LHS leaves a dump where it runs
    assert result["default"]["step_us"] > result["baseline"]["step_us"]
    assert result["ceiling_us"] <= result["profiled"]["step_us"]
    assert "pgle" in result["next"]


def test_where_lhs_is_the_default_there_are_two_schedules(programs, rehearse):
    assert rehearse(programs("overlap"), "--target", "h100")["default"] is None


def test_a_program_without_independent_compute_cannot_be_helped(programs, rehearse):
    result = rehearse(programs("tensor"), "--target", "a100")
    assert result["used"]
    assert result["moved"] == []
    bounds, step_us = result["account"]["bounds"], result["account"]["step_us"]
    assert bounds["best_order_us"] > 0.99 * step_us
    assert bounds["without_communication_us"] < 0.9 * step_us


def test_schedules_logs_and_the_profile_are_kept(programs, rehearse):
    result = rehearse(programs("overlap"), "--target", "h100")
    for side in ("baseline", "profiled"):
        assert Path(result[side]["hlo"]).is_file()
        assert Path(result[side]["log"]).is_file()
    assert Path(result["profile"]).suffix == ".pbtxt"


def test_the_profile_alone_does_not_change_the_fingerprint(programs, rehearse):
    result = rehearse(programs("overlap"), "--target", "h100")
    assert result["baseline"]["fingerprint"] == result["profiled"]["fingerprint"] != ""


def test_a_captured_program_is_rehearsed(rehearse):
    words = [sys.executable, "-m", "pgle.workloads", "overlap", "--compile-only"]
    result = rehearse("--target", "a100", "--devices", "4", "--", *words)
    assert result["modules"][0]["name"] == "jit_overlap_step"


def refused(capsys, *arguments: object) -> str:
    code = run(["rehearse", *map(str, arguments)])
    captured = capsys.readouterr()
    assert code == 2
    *phases, line = captured.err.splitlines()
    told = ("reading", "what the program prints is in")
    assert all(any(word in phase for word in told) for phase in phases)
    return f"{line}\n"


def test_a_folder_in_use_is_left_alone(capsys, tmp_path, testdata):
    (tmp_path / "mine").write_text("x")
    module = next((testdata / "stablehlo").glob("*.mlir"))
    assert "not an empty directory" in refused(capsys, module, "-o", tmp_path)


def test_a_missing_module_is_named(capsys, tmp_path):
    assert "no such file" in refused(capsys, tmp_path / "step.mlir")


def test_a_file_of_another_kind_is_named_as_it_was_typed(capsys, testdata, tmp_path):
    (tmp_path / "link.sqlite").symlink_to(
        testdata / "nsys_synthetic" / "synthetic_cases.sqlite"
    )
    said = refused(capsys, tmp_path / "link.sqlite")
    assert said.endswith(
        "link.sqlite: neither StableHLO nor HLO; dump modules with JAX_DUMP_IR_TO=DIR\n"
    )


def test_a_folder_of_dumps_is_rehearsed_by_its_largest_module(programs, rehearse):
    module = programs("tensor")
    result = rehearse(module.parent, "--target", "a100")
    assert result["module"] == str(module)
    assert (result["devices"], result["target"]) == (4, "a100-40gb")


def test_flags_of_the_environment_are_compiled_with(programs, rehearse, monkeypatch):
    flag = "--xla_gpu_all_gather_combine_threshold_bytes=1"
    monkeypatch.setenv("XLA_FLAGS", flag)
    result = rehearse(programs("overlap"), "--target", "a100")
    assert result["flags"] == [flag]
    log = Path(result["baseline"]["hlo"]).parent
    (config,) = log.glob("*.jit_overlap_step.config.pbtxt")
    assert "xla_gpu_all_gather_combine_threshold_bytes: 1\n" in config.read_text()


def test_an_unknown_target_lists_the_known(capsys, testdata):
    module = next((testdata / "stablehlo").glob("*.mlir"))
    assert "h100" in refused(capsys, module, "--target", "h999")


def test_a_program_that_compiles_nothing_says_so(capsys):
    assert "compiled no jax module" in refused(
        capsys, "--", sys.executable, "-c", "print(1)"
    )


def test_a_program_that_fails_passes_its_exit_code_on(capsys):
    code = run(["rehearse", "--", sys.executable, "-c", "raise SystemExit(3)"])
    assert code == 3
    assert "before it imported jax" in capsys.readouterr().err


def test_help_needs_no_plugin():
    done = subprocess.run(
        [sys.executable, "-m", "pgle", "rehearse", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "without" in done.stdout


def test_with_a_profile_of_another_program_nothing_is_said_about_pgle(
    programs, capsys, tmp_path
):
    profile = tmp_path / "other.pbtxt"
    profile.write_text('costs { name: "not.there" cost_us: 5.0 }\n')
    words = [
        "--target",
        "a100",
        "--profile",
        str(profile),
        "-o",
        str(tmp_path / "out"),
        "--json",
    ]
    assert run(["rehearse", str(programs("overlap")), *words]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"].startswith(
        "Cannot tell: XLA's use of the profile is"
    )


def test_a_flag_that_makes_collectives_synchronous_is_the_reason(programs, rehearse):
    flag = "--xla_gpu_disable_async_collectives"
    result = rehearse(
        programs("overlap"), "--target", "a100", "--flag", f"{flag}=allcollectives"
    )
    assert {move["after"]["reason"] for move in result["stayed"]} == {
        f"synchronous by {flag}"
    }


@pytest.mark.parametrize(
    "flag",
    [
        "--xla_dump_to=/tmp/x",
        "--xla_gpu_pgle_profile_file_or_directory_path=/tmp/x.pbtxt",
    ],
)
def test_flags_that_rehearse_sets_itself_are_refused(capsys, testdata, tmp_path, flag):
    module = next((testdata / "stablehlo").glob("*.mlir"))
    assert "sets this flag itself" in refused(
        capsys, module, "-o", tmp_path / "out", "--flag", flag
    )


CUSTOM_CALLS = """
module @jit_step attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%w: tensor<512x512xf32> {mhlo.sharding = "{replicated}"},
                         %x: tensor<1024x512xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<1024x512xf32> {
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
       : (tensor<1024x512xf32>, tensor<512x512xf32>) -> tensor<1024x512xf32>
    %a = stablehlo.custom_call @CustomSPMDPartitioning(%y) {backend_config = "0"}
       : (tensor<1024x512xf32>) -> tensor<1024x512xf32>
    %b = stablehlo.custom_call @their_kernel_ffi(%a) {api_version = 4 : i32}
       : (tensor<1024x512xf32>) -> tensor<1024x512xf32>
    return %b : tensor<1024x512xf32>
  }
}
"""


def test_calls_that_xla_does_not_know_are_scheduled_and_named(rehearse, tmp_path):
    module = tmp_path / "step.mlir"
    module.write_text(CUSTOM_CALLS)
    result = rehearse(module, "--target", "h100", is_bound=True)
    assert result["devices"] == 4
    unpriced, gathered = result["warnings"]
    assert unpriced.startswith(
        "no cost is known for custom calls (their_kernel_ffi × 1)"
    )
    assert gathered.startswith(
        "how the program partitions its CustomSPMDPartitioning calls"
    )


def test_the_flags_of_the_pipeline_recipe_hide_the_back_edge(programs, rehearse):
    flags = (
        "--xla_gpu_enable_command_buffer=",
        "--xla_disable_hlo_passes=collective-permute-motion",
        "--xla_gpu_experimental_pipeline_parallelism_opt_level=PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE",
    )
    result = rehearse(
        programs("ring"), *(word for flag in flags for word in ("--flag", flag))
    )
    transfers = [move["after"] for move in (*result["moved"], *result["stayed"])]
    (back,) = [item for item in transfers if item["kind"] == "collective-permute"]
    assert back["exposed_us"] < 0.01 * back["cost_us"] * back["executions"]
