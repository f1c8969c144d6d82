"""`pgle predict` on real modules, with measured and estimated costs."""

import json
import shlex
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.files import write_files
from pgle.next import Way
from pgle.report.page.value import Page, as_json
from pgle.run.directory.directory import RunDirectory

pytestmark = pytest.mark.usefixtures("read_once")

ROOT = Path(__file__).parents[2]
PAX = ROOT / "testdata" / "pax_fsdp4"
MAXTEXT = ROOT.parent / "shared" / "data" / "maxtext_fsdp4_h100"


ANSWERS: dict[tuple[str, ...], dict[str, object]] = {}
"""What commands answered, by their words: several tests look at one answer."""


def answer(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], *more: str
) -> dict[str, object]:
    if words not in ANSWERS:
        capsys.readouterr()
        assert run([*words, *more, "--json"]) == 0
        ANSWERS[words] = json.loads(capsys.readouterr().out)
    return ANSWERS[words]


def predicted(
    capsys: pytest.CaptureFixture[str], *arguments: object
) -> dict[str, object]:
    return answer(capsys, ("predict", *map(str, arguments)))


def converted(folder: Path, *arguments: object) -> Path:
    profile = folder / "profile.pbtxt"
    assert run(["convert", *map(str, arguments), "-o", str(profile), "--force"]) == 0
    return profile


def measured_us(
    folder: Path, capsys: pytest.CaptureFixture[str], *arguments: object
) -> float:
    """Median span of the steady executions in a trace."""
    found = answer(
        capsys, ("convert", *map(str, arguments)), "-o", str(folder / "other.pbtxt")
    )
    return found["modules"][0]["step_us"]


def test_the_step_of_a_real_job_is_met_by_the_costs_of_another_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = PAX / "proc0" / "dump"
    profile = converted(tmp_path, PAX / "proc3.sqlite", "--hlo", dump)
    found = predicted(capsys, dump, "--profile", profile, "--target", "a100")
    assert found["costs_are"] == "measured"
    measured = measured_us(tmp_path, capsys, PAX / "proc0.sqlite", "--hlo", dump)
    assert found["step_us"] == pytest.approx(measured, rel=0.01)


def test_the_parts_add_up_and_the_range_holds_the_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = predicted(capsys, PAX / "proc0" / "dump", "--target", "a100")
    parts = found["breakdown"]
    assert found["costs_are"] == "estimated"
    names = ("compute_us", "exposed_communication_us", "exposed_copy_us", "idle_us")
    assert sum(parts[name] for name in names) == pytest.approx(parts["step_us"])
    low, high = found["interval_us"]
    assert low < found["step_us"] < high
    assert len(found["collectives"]) == 23
    assert {item["origin"] for item in found["collectives"]} == {"estimated"}


def test_the_estimated_range_holds_what_the_real_job_took(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The range was made from this job and one other: this shows that it is applied, not that it
    # holds elsewhere.
    low, high = predicted(capsys, PAX / "proc0" / "dump", "--target", "a100")[
        "interval_us"
    ]
    assert (
        low
        < measured_us(
            tmp_path, capsys, PAX / "proc0.sqlite", "--hlo", PAX / "proc0" / "dump"
        )
        < high
    )


@pytest.mark.skipif(not MAXTEXT.exists(), reason="needs the 4 × H100 MaxText recording")
def test_a_job_whose_ranks_differ_is_met_by_its_slowest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = converted(tmp_path, MAXTEXT / "rebuilt.sqlite", "--hlo", MAXTEXT / "dump")
    found = predicted(capsys, MAXTEXT / "dump", "--profile", profile)
    measured = measured_us(
        tmp_path, capsys, MAXTEXT / "rebuilt.sqlite", "--hlo", MAXTEXT / "dump"
    )
    assert found["step_us"] == pytest.approx(measured, rel=0.02)
    assert found["skew_us"] > 0.07 * measured


def test_a_module_that_is_not_scheduled_is_sent_to_the_compiler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "HloModule m\n\nENTRY e {\n  x = f32[4]{0} parameter(0)\n  ROOT y = f32[4]{0} negate(x)\n}\n"
    (tmp_path / "m.txt").write_text(text)
    assert run(["predict", str(tmp_path / "m.txt")]) == 2
    assert "pgle rehearse" in capsys.readouterr().err


def test_the_answer_ends_in_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", str(PAX / "proc0" / "dump"), "--target", "a100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Now edit: base_ops.py:42 to save ") for line in lines)
    document = predicted(capsys, PAX / "proc0" / "dump", "--target", "a100")
    assert "jax.nn.dot_product_attention(" in document["next"]


@pytest.mark.parametrize(
    ("dump", "target", "by"),
    [
        (PAX / "proc0/dump", "a100-40gb", "description"),
        (ROOT / "testdata/hlo/jax-0.12.0.1/async", "a100-40gb", "file name"),
        (
            ROOT / "testdata/hlo/jax-0.12.0.1/async/jit_step.schedule.pb.xz",
            "h100-sxm",
            "nothing",
        ),
    ],
)
def test_the_gpu_is_that_of_the_dump(
    dump: Path, target: str, by: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = predicted(capsys, dump)
    assert (found["target"], found["target_from"]) == (target, by)


def test_a_gpu_that_the_dump_does_not_tell_is_said_to_be_assumed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        run(
            [
                "predict",
                str(ROOT / "testdata/hlo/jax-0.12.0.1/async/jit_step.schedule.pb.xz"),
            ]
        )
        == 0
    )
    assert (
        "h100-sxm (GPU assumed, the dump does not say: --target)"
        in capsys.readouterr().out
    )


def test_what_is_not_scheduled_yet_names_the_command_that_does_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = ROOT / "testdata/stablehlo/fsdp_mlp_jax_0.10.2.mlir"
    assert run(["predict", str(module)]) == 2
    command = f"pgle rehearse {shlex.quote(str(module))}"
    said = f"pgle: {module}: StableHLO, not yet scheduled; {command}\n"
    assert capsys.readouterr().err == said


def test_of_a_run_directory_the_stage_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_ = RunDirectory(tmp_path)
    run_.manifest().write_text("{}")
    given = ROOT / "testdata/hlo/jax-0.12.0.1/async/jit_step.schedule.pb.xz"
    for stage in ("profile", "baseline"):
        dump = run_.stage(stage).rank().hlo  # type: ignore[arg-type]
        dump.mkdir(parents=True)
        (found,) = given.parent.glob("*optimizations.hlo.pb.xz")
        (dump / found.name).write_bytes(found.read_bytes())
    assert run(["predict", str(tmp_path)]) == 0
    assert "as its baseline stage compiled it" in capsys.readouterr().out


def test_another_generation_than_that_of_the_dump_is_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = predicted(capsys, PAX / "proc0" / "dump", "--target", "h100")
    assert found["warnings"][0] == (
        "the dump was compiled for sm_8.0 (a100-40gb), by the description next to it, "
        "and --target h100-sxm is another generation: its kernels and schedule differ there"
    )
    same = predicted(capsys, PAX / "proc0" / "dump", "--target", "a100")
    assert not any("generation" in line for line in same["warnings"])


def test_the_verdict_names_the_largest_lever(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dump = ROOT / "testdata" / "pax_fsdp4" / "proc0" / "dump"
    assert run(["predict", str(dump), "--target", "a100"]) == 0
    assert "; fuse the attention: saves 4" in capsys.readouterr().out.splitlines()[1]


@pytest.mark.parametrize("command", ["analyze", "predict"])
def test_of_a_rehearsal_the_step_as_it_is_now_is_read_and_its_way_is_kept(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control is of another schedule, in which collectives are synchronous."""
    dumps = ROOT / "testdata/hlo/jax-0.12.0.1"
    folder = tmp_path / "rehearsal"
    way = Way(next=("pgle advise -- python train.py",))
    write_files({folder / "report.json": as_json(Page("rehearsal", (), "", way=way))})
    for name, mode in (("baseline", "async"), ("control/profiled", "sync")):
        (found,) = (dumps / mode).glob("*optimizations.hlo.pb.xz")
        write_files({folder / name / found.name: found.read_bytes()})
    documents = []
    for path in (tmp_path, folder / "baseline", folder / "control"):
        assert run([command, str(path), "--target", "h100", "--json"]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    whole, now, control = documents
    assert whole["step_us"] == now["step_us"] != control["step_us"]
    assert whole["next"] == "pgle advise -- python train.py"
