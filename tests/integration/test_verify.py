"""`pgle verify` as a user types it."""

import json
import lzma
import os
import re
import shlex
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.costs.profile.coverage import estimate_profile
from pgle.xla.hlo.dumps import read_module
from pgle.xla.targets import find_hardware

pytestmark = pytest.mark.usefixtures("read_once")

TESTDATA = Path(__file__).parents[2] / "testdata"
DUMP = TESTDATA / "pax_fsdp4/proc0/dump"
MAXTEXT = TESTDATA / "maxtext_pgle/llama2_70b_bf16_pgle_128vm.pbtxt"
TWELVE = TESTDATA / "hlo/jax-0.12.0.1"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The costs of the real step, from its trace."""
    out = tmp_path_factory.mktemp("verify") / "step.pbtxt"
    trace = TESTDATA / "pax_fsdp4/proc0.sqlite"
    assert run(["convert", str(trace), "--hlo", str(DUMP), "-o", str(out)]) == 0
    return out


def test_a_profile_of_the_same_program_passes(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["verify", str(profile), "--hlo", str(DUMP), "--min-time-coverage", "1"])
        == 0
    )
    said = capsys.readouterr().out
    assert "the profile covers 100.0 % of the step's time" in said


def test_json_has_the_promised_keys(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(profile), "--hlo", str(DUMP), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["ok"], found["unused"]) == (
        "pgle.verify/1",
        True,
        [],
    )
    main = found["modules"][0]
    assert main["name"] == "pjit__wrapped_step_fn"
    assert main["fingerprint"] == "25fa0b3e673a92036f22550cd7bcb068"
    assert main["coverage"] == {
        "count": 1,
        "time": 1,
        "measured": 1,
        "collectives": 1,
        "without_lost_collectives": 1,
    }
    assert (main["missing"], main["hints"]) == ([], [])


def test_a_profile_of_another_program_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(MAXTEXT), "--hlo", str(DUMP)]) == 1
    output = capsys.readouterr()
    assert "FAILED" in output.out
    assert (
        "To do: this profile was made by another program, flags or jax version"
        in output.out
    )
    assert "by accident" in output.out
    assert max(map(len, output.out.replace(str(MAXTEXT), "").splitlines())) <= 100
    assert "pgle profile" in output.out


def test_the_bound_decides(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "verify",
        str(MAXTEXT),
        "--hlo",
        str(DUMP),
        "--min-time-coverage",
        "0.1",
        "--min-collectives",
    ]
    assert (run([*arguments, "0"]), run([*arguments, "0.99"])) == (0, 1)


def without_collectives(profile: Path, out: Path) -> Path:
    lines = profile.read_text().splitlines(keepends=True)
    out.write_text(
        "".join(
            line
            for line in lines
            if not re.search(r'"(all-gather|all-reduce|reduce-scatter)', line)
        )
    )
    return out


def test_a_profile_without_collectives_fails_however_much_time_it_covers(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = without_collectives(profile, tmp_path / "blind.pbtxt")
    assert (
        run(
            [
                "verify",
                str(blind),
                "--hlo",
                str(DUMP),
                "--min-time-coverage",
                "0",
                "--section",
                "hints",
            ]
        )
        == 1
    )
    text = capsys.readouterr().out
    assert (
        "FAILED: 23 of 23 collectives lack a cost: 115.0 ms (as XLA assumes) of" in text
    )
    dump = shlex.quote(str(DUMP))
    assert f"`pgle complete {blind} --hlo {dump}`" in " ".join(text.split())


def test_lost_collectives_whose_gaps_xla_models_weigh_what_is_estimated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (found,) = (TWELVE / "async").glob("*optimizations.hlo.pb.xz")
    dump = tmp_path / "module_0001.jit_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz"
    dump.write_bytes(found.read_bytes())
    costs = estimate_profile(read_module(dump), find_hardware("h100")).costs
    lost = max(
        (cost for cost in costs if cost.kind == "collective"),
        key=lambda cost: cost.cost_us,
    )
    text = "".join(
        f'costs {{ name: "{cost.name}" cost_us: {cost.cost_us} }}\n'
        for cost in costs
        if cost != lost
    )
    (tmp_path / "p.pbtxt").write_text(text)
    assert run(["verify", str(tmp_path / "p.pbtxt"), "--hlo", str(dump)]) == 1
    said = capsys.readouterr().out
    assert re.search(r"1 of 10 collectives lack a cost: \S+ µs \(estimated\) of", said)


def test_json_has_the_cost_of_a_gap_and_what_xla_takes_it_for(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = without_collectives(profile, tmp_path / "blind.pbtxt")
    assert run(["verify", str(blind), "--hlo", str(DUMP), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    (gap,) = [
        gap
        for gap in found["modules"][0]["gaps"]
        if gap["name"] == "all-gather-start.7"
    ]
    assert gap["cost_us"] < 300 < gap["assumed_us"] == gap["weight_us"] == 5000
    assert any("23 of 23 collectives" in line for line in found["failed"])


@pytest.mark.parametrize("value", ["nan", "inf", "-5"])
def test_a_cost_that_is_no_time_fails_and_is_named(
    profile: Path, tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.pbtxt"
    bad.write_text(
        re.sub(
            r'("all-gather-start.7" cost_us: )\S+',
            rf"\g<1>{value}",
            profile.read_text(),
        )
    )
    assert (
        run(
            [
                "verify",
                str(bad),
                "--hlo",
                str(DUMP),
                "--min-time-coverage",
                "0",
                "--min-collectives",
                "0",
            ]
        )
        == 1
    )
    assert f"all-gather-start.7 ({value})" in capsys.readouterr().out


def test_a_cost_far_off_its_estimate_is_a_warning(
    profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.pbtxt").write_text(
        f'{profile.read_text()}\ncosts {{ name: "custom-call.219.0" cost_us: 2e5 }}\n'
    )
    assert run(["verify", str(tmp_path / "p.pbtxt"), "--hlo", str(DUMP)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("!")
    assert any(
        "custom-call.219.0 costs 200.0 ms, the estimate is" in line for line in lines
    )


def test_one_module_can_be_chosen(
    profile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["verify", str(profile), "--hlo", str(DUMP), "--module", "_psum", "--json"])
        == 1
    )
    names = {
        module["name"] for module in json.loads(capsys.readouterr().out)["modules"]
    }
    assert names == {"jit__psum"}


def test_schedule_dumps_beside_the_hlo_are_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["no-such-name", "gemm_fusion_dot.9", "all-gather-start"]
    (tmp_path / "few.pbtxt").write_text(
        "".join(f'costs {{ name: "{name}" cost_us: 7 }}\n' for name in names)
    )
    assert (
        run(
            [
                "verify",
                str(tmp_path / "few.pbtxt"),
                "--hlo",
                str(TWELVE / "async"),
                "--json",
            ]
        )
        == 1
    )
    found = json.loads(capsys.readouterr().out)
    assert found["modules"][0]["names_from"] == "schedule dump"
    assert found["modules"][0]["totals"]["instructions"]["covered"] == 2
    assert found["unused"] == ["no-such-name"]


def test_a_schedule_dump_alone_will_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = TWELVE / "async/jit_step.schedule.txt.xz"
    (tmp_path / "jit_step.schedule.txt").write_bytes(
        lzma.decompress(packed.read_bytes())
    )
    (tmp_path / "few.pbtxt").write_text(
        'costs { name: "all-gather-start" cost_us: 7 }\n'
    )
    for where in (
        ["--hlo", str(tmp_path / "jit_step.schedule.txt")],
        ["--hlo", str(tmp_path)],
    ):
        assert run(["verify", str(tmp_path / "few.pbtxt"), *where, "--json"]) == 1
        (module,) = json.loads(capsys.readouterr().out)["modules"]
        assert (module["names_from"], module["totals"]["instructions"]["covered"]) == (
            "schedule dump",
            1,
        )


def test_a_schedule_dump_of_another_module_may_be_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jit_step.schedule.pb.xz").write_bytes(
        (TWELVE / "async/jit_step.schedule.pb.xz").read_bytes()
    )
    other = lzma.decompress(
        (TWELVE / "collectives/jit_collectives.schedule.pb.xz").read_bytes()
    )
    (tmp_path / "jit_collectives.schedule.pb").write_bytes(other[: len(other) // 2])
    (tmp_path / "few.pbtxt").write_text(
        'costs { name: "all-gather-start" cost_us: 7 }\n'
    )
    command = ["verify", str(tmp_path / "few.pbtxt"), "--hlo", str(tmp_path)]
    assert run(command) == 2
    assert (
        "jit_collectives.schedule.pb: not a binary schedule dump, or cut short"
        in capsys.readouterr().err
    )
    assert run([*command, "--module", "step", "--json"]) == 1
    (module,) = json.loads(capsys.readouterr().out)["modules"]
    assert (module["name"], module["names_from"]) == ("jit_step", "schedule dump")
    assert run([*command, "--module", "nope"]) == 2
    assert (
        "no module of the dump matches; it has jit_collectives, jit_step"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([str(MAXTEXT)], "give --hlo DUMP"),
        (["nowhere.pbtxt", "--hlo", str(DUMP)], "no such file"),
        ([str(MAXTEXT), "--hlo", "nowhere"], "no such file"),
        ([str(MAXTEXT), "--hlo", str(MAXTEXT)], "a cost profile, not HLO"),
        ([str(MAXTEXT), "--hlo", str(MAXTEXT.parent)], "no HLO dump"),
        (
            [str(MAXTEXT), "--hlo", str(DUMP), "--module", "nope"],
            "no module of the dump matches",
        ),
        (
            [str(MAXTEXT), "--hlo", str(DUMP), "--module", "("],
            "not a regular expression",
        ),
        (["no-such-profile", "--hlo", str(DUMP)], "no such file"),
        (
            [str(MAXTEXT), "--hlo", str(DUMP), "--min-time-coverage", "95"],
            "not in the range",
        ),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert len(output.err.splitlines()) == 1
    assert output.out == ""


def test_names_of_another_fingerprint_can_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.pbtxt"
    other.write_text(
        f'costs {{ name: "{"0123456789abcdef" * 2}::input_reduce_fusion.322" cost_us: 7 }}'
    )
    assert run(["verify", str(other), "--hlo", str(DUMP), "--section", "unused"]) == 1
    assert "0123456789ab…::input_reduce_fusion.322" in capsys.readouterr().out


def test_no_column_of_numbers_is_broken(
    capsys: pytest.CaptureFixture[str], testdata: Path
) -> None:
    profile = testdata / "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt"
    run(
        [
            "verify",
            str(profile),
            "--hlo",
            str(TWELVE / "async"),
            "--section",
            "coverage",
        ]
    )
    text = capsys.readouterr().out
    assert re.search(r"sum of costs +[\d.]+ +[\d.]+ +[\d.]+ %", text)


def test_nan_is_no_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(
            [
                "verify",
                str(tmp_path / "x.pbtxt"),
                "--hlo",
                str(TWELVE),
                "--min-time-coverage",
                "nan",
            ]
        )
        == 2
    )
    assert "nan is not in the range" in capsys.readouterr().err


def test_a_profile_in_a_pipe_does_not_hang(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.pbtxt")
    assert run(["verify", str(tmp_path / "pipe.pbtxt"), "--hlo", str(TWELVE)]) == 2
    assert "is a pipe, a file is needed" in capsys.readouterr().err
