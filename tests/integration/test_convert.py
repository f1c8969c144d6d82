"""`pgle convert` on real traces, known answers and bad input."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import shutil
import sqlite3
import statistics
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.costs.profile.files import read_profile
from pgle.xla.hlo.dumps import read_modules

pytestmark = pytest.mark.usefixtures("read_once")

PAX = Path(__file__).parents[2] / "testdata/pax_fsdp4"


@pytest.fixture
def pax():
    return PAX


@pytest.fixture
def convert(tmp_path, capsys):
    """Run `pgle convert` on inputs; returns (exit code, profile path, stdout, stderr)."""

    def call(*arguments: object, out: str = "profile.pbtxt"):
        path = tmp_path / out
        code = run(["convert", *map(str, arguments), "-o", str(path)])
        captured = capsys.readouterr()
        return code, path, captured.out, captured.err

    return call


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """The real step's conversion, for tests that only look at it: (exit code, profile path, stdout,
    stderr).
    """
    path = tmp_path_factory.mktemp("step") / "step.pbtxt"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(["convert", *map(str, pax_arguments(PAX)), "-o", str(path)])
    return code, path, out.getvalue(), err.getvalue()


def pax_arguments(pax: Path) -> list[object]:
    return [
        pax / "proc0.sqlite",
        pax / "proc3.sqlite",
        "--hlo",
        pax / "proc0/dump",
        "--hlo",
        pax / "proc3/dump",
    ]


def truth(pax: Path) -> dict[str, float]:
    """What nsys's own projection gives: per execution the faster rank, the median of executions 2
    to 4.
    """
    times: dict[str, dict[int, list[int]]] = {}
    with (pax / "collectives.csv").open() as file:
        for row in csv.DictReader(file):
            executions = times.setdefault(row["instruction"], {})
            executions.setdefault(int(row["execution"]), []).append(
                int(row["duration_ns"])
            )
    return {
        name: statistics.median(min(executions[number]) for number in (2, 3, 4)) / 1e3
        for name, executions in times.items()
    }


def test_collectives_of_the_real_step_cost_what_the_last_rank_measured(converted, pax):
    code, path, _, _ = converted
    costs = {
        cost.trace_name or cost.name: cost.cost_us
        for cost in read_profile(path).costs
        if cost.kind == "collective"
    }
    assert code == 0
    assert costs == pytest.approx(truth(pax), rel=0.03)


def test_every_name_is_one_of_the_step_module_and_only_once(converted, pax):
    _, path, _, _ = converted
    names = [cost.name for cost in read_profile(path).costs]
    (step,) = [
        m for m in read_modules(pax / "proc0/dump") if m.name == "pjit__wrapped_step_fn"
    ]
    assert len(names) == len(set(names))
    assert set(names) <= step.instructions.keys()


def test_no_name_of_another_module_or_of_the_autotuner_is_written(converted, pax):
    _, path, _, _ = converted
    step_only = {cost.name for cost in read_profile(path).costs}
    (step,) = [
        m for m in read_modules(pax / "proc0/dump") if m.name == "pjit__wrapped_step_fn"
    ]
    tuned = {
        "gemm_fusion_dot.261",
        "gemm_fusion_dot.262",
        "custom-call.1",
    } - step.instructions.keys()
    assert tuned
    assert not step_only & tuned


def test_the_report_says_what_was_used_and_left_out(converted):
    _, path, out, _ = converted
    assert " 3 of 5 " in out  # steps of a device, as analyze counts them; two devices
    assert "warm-up" in out
    assert "autotuner" in out
    assert f"wrote {path}" in out


def test_json_has_the_window_and_the_files(convert, pax):
    _, path, out, _ = convert(*pax_arguments(pax), "--json")
    result = json.loads(out)
    assert result["schema"] == "pgle.convert/1"
    assert result["modules"][0]["name"] == "pjit__wrapped_step_fn"
    assert result["modules"][0]["executions_used"] == 6
    assert result["modules"][0]["collectives"] == 23
    assert result["written"][0]["path"] == str(path)


def test_the_same_input_gives_the_same_bytes(converted, convert, pax):
    _, first, _, _ = converted
    _, second, _, _ = convert(*pax_arguments(pax))
    assert first.read_bytes() == second.read_bytes()
    assert Path(f"{first}.json").read_bytes() == Path(f"{second}.json").read_bytes()


def test_text_and_binary_hold_the_same_costs(converted, convert, pax):
    _, text, _, _ = converted
    _, binary, _, _ = convert(*pax_arguments(pax), out="a.pb")
    assert read_profile(text).costs == read_profile(binary).costs


def test_a_directory_gets_one_file_per_fingerprint(convert, pax):
    code, path, _, _ = convert(*pax_arguments(pax), out="profiles")
    assert code == 0
    assert sorted(file.name for file in path.glob("*.pbtxt")) == [
        "04555b1419fd4e5b8933dc47fbf80dbb.pbtxt",
        "25fa0b3e673a92036f22550cd7bcb068.pbtxt",
    ]


def test_all_modules_in_one_file_carry_their_fingerprints(convert, pax):
    _, path, _, _ = convert(*pax_arguments(pax), "--module", "all")
    profile = read_profile(path)
    assert all(len(cost.fingerprint) == 32 for cost in profile.costs)
    assert len({cost.fingerprint for cost in profile.costs}) > 10


# What JAX's own converter gets wrong in nearly every case: testdata/nsys_synthetic, known by
# construction.
TRUE_COSTS = {
    "cudnn-conv.2": 450,  # three kernels of one launch
    "cub-sort.3": 80,  # the same kernel four times
    "copy.4": 500,  # a memcpy, no kernel
    "input_scatter_fusion.5": 35,  # memset and kernel
    "loop_body_fusion.9": 40,  # in a loop of three
    "gemm.10": 200,
    "loop_mul_fusion.20": 70,  # two nodes of one CUDA graph
    "loop_sub_fusion.21": 90,
    "loop_add_fusion.1": 10,  # 900 in another module
    "all-gather-start.7": 1000,  # the other rank waits 4000 longer
    "new_style.30": 12,  # hlo_op=…,unique_hlo_op_id=77
}


def test_every_synthetic_case_has_its_true_cost(convert, testdata):
    code, path, _, _ = convert(testdata / "nsys_synthetic/synthetic_cases.sqlite")
    assert code == 0
    assert {
        cost.name: cost.cost_us for cost in read_profile(path).costs
    } == pytest.approx(TRUE_COSTS)


def test_the_same_name_in_the_other_module_has_its_own_cost(convert, testdata):
    _, path, _, _ = convert(
        testdata / "nsys_synthetic/synthetic_cases.sqlite", "--module", "jit_g"
    )
    assert {
        cost.name: cost.cost_us for cost in read_profile(path).costs
    } == pytest.approx({"loop_add_fusion.1": 900})


def refused(result) -> str:
    """The one line of a refusal that left nothing behind."""
    code, path, out, err = result
    assert code == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err
    assert list(path.parent.glob("*profile*")) == []
    return err


def test_a_missing_input_is_named(convert, tmp_path):
    assert "no such file" in refused(convert(tmp_path / "nothing.sqlite"))


def test_an_empty_file_is_not_a_database(convert, tmp_path):
    (tmp_path / "empty.sqlite").touch()
    assert "not a SQLite database" in refused(convert(tmp_path / "empty.sqlite"))


@pytest.mark.parametrize("kept", [100, 5000, 1_000_000, 2_500_000])
def test_a_truncated_database_is_refused(convert, pax, tmp_path, kept):
    (tmp_path / "cut.sqlite").write_bytes((pax / "proc0.sqlite").read_bytes()[:kept])
    assert "cut.sqlite" in refused(convert(tmp_path / "cut.sqlite"))


def test_something_else_entirely_is_refused_with_what_would_do(convert, tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    assert ".nsys-rep" in refused(convert(tmp_path / "notes.txt"))


def test_what_cannot_hold_a_profile_and_its_sidecar_is_refused(capsys, testdata):
    assert (
        run(
            [
                "convert",
                str(testdata / "nsys_synthetic/synthetic_cases.sqlite"),
                "-o",
                "/dev/null",
            ]
        )
        == 2
    )
    assert "not a .pbtxt or .pb file" in capsys.readouterr().err


def test_traces_without_jax_ranges_are_refused(convert, testdata):
    refused(convert(testdata / "nsys_exports/h100_2gpu_1s.sqlite"))
    refused(convert(testdata / "nsys_exports/mock.sqlite"))
    refused(convert(testdata / "nsys_exports/healthy_1pct.sqlite"))


def test_an_unknown_module_lists_what_there_is(convert, testdata):
    err = refused(
        convert(
            testdata / "nsys_synthetic/synthetic_cases.sqlite", "--module", "jit_train"
        )
    )
    assert "jit_f" in err


def test_the_dump_of_another_program_is_refused(convert, pax, testdata):
    err = refused(
        convert(
            testdata / "nsys_synthetic/synthetic_cases.sqlite",
            "--hlo",
            pax / "proc0/dump",
        )
    )
    assert "no module of the dump is jit_f" in err


def test_the_dump_of_another_program_is_refused_though_the_trace_holds_its_own(
    convert, pax, testdata
):
    xplane = testdata / "jax_xplane/jax08_gemm.xplane.pb"
    err = refused(convert(xplane, "--hlo", pax / "proc0/dump"))
    assert "no module of the dump is jit_dot" in err


def test_a_dump_of_some_modules_of_the_trace_warns_of_the_others(convert, testdata):
    convolution = testdata / "jax_xplane/jax_conv_minimal_08_tw003.xplane.pb"
    product = testdata / "jax_xplane/jax08_gemm.xplane.pb"
    dump = testdata / "jax_xplane/hlo_proto/jit_forward_3d_conv(15).hlo_proto.pb"
    chosen = ("--hlo", dump, "--module", "jit_dot|forward")
    code, _, out, _ = convert(convolution, product, *chosen)
    assert code == 0
    said = " ".join(out.split())
    assert "no module of the dump is jit_dot (it has jit_forward_3d_conv)" in said


def test_a_suffix_that_xla_ignores_is_refused(convert, testdata):
    assert ".pbtxt" in refused(
        convert(testdata / "nsys_synthetic/synthetic_cases.sqlite", out="profile.txt")
    )


def test_existing_files_are_kept_unless_forced(convert, testdata, tmp_path):
    (tmp_path / "profile.pbtxt").write_text("mine")
    source = testdata / "nsys_synthetic/synthetic_cases.sqlite"
    code, path, _, err = convert(source)
    assert (code, path.read_text()) == (2, "mine")
    assert "--force" in err
    assert convert(source, "--force")[0] == 0
    assert path.read_text().startswith("costs {")


def test_the_input_is_not_touched(convert, testdata, tmp_path):
    source = tmp_path / "report.sqlite"
    shutil.copy(testdata / "nsys_synthetic/synthetic_cases.sqlite", source)
    before = (source.read_bytes(), sorted(tmp_path.iterdir()))
    convert(source, out="out/profile.pbtxt")
    assert (
        source.read_bytes(),
        sorted(p for p in tmp_path.iterdir() if p.name != "out"),
    ) == before


def test_an_input_given_twice_counts_once(convert, pax, tmp_path):
    (tmp_path / "link.sqlite").symlink_to((pax / "proc0.sqlite").resolve())
    _, once, _, _ = convert(pax / "proc0.sqlite", out="once.pbtxt")
    code, twice, out, _ = convert(
        pax / "proc0.sqlite", tmp_path / "link.sqlite", out="twice.pbtxt"
    )
    assert code == 0
    assert "given twice" in out
    assert twice.read_bytes() == once.read_bytes()


def test_ranks_that_number_their_modules_differently_are_one_program(
    converted, convert, pax, tmp_path
):
    _, expected, _, _ = converted
    other = tmp_path / "proc3.sqlite"
    shutil.copy(pax / "proc3.sqlite", other)
    with contextlib.closing(sqlite3.connect(other)) as database, database:
        old, new = (
            f"pjit__wrapped_step_fn,program_id={number}#" for number in (40, 44)
        )
        database.execute(
            "update StringIds set value = replace(value, ?, ?)", (old, new)
        )
    code, path, _, _ = convert(
        pax / "proc0.sqlite", other, "--hlo", pax / "proc0/dump", out="other.pbtxt"
    )
    assert code == 0
    assert path.read_bytes() == expected.read_bytes()


def test_all_modules_in_one_profile_have_each_name_once(convert, pax):
    _, path, _, _ = convert(
        pax / "proc0.sqlite", "--hlo", pax / "proc0/dump", "--module", "all"
    )
    names = [cost.full_name for cost in read_profile(path).costs]
    assert len(names) == len(set(names))
