"""`pgle scale` on a program of pgle's own, with the real compiler."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from schemas import violations

from pgle.cli.main import run

pytestmark = [pytest.mark.rehearse, pytest.mark.usefixtures("plugin_loaded_once")]
PROGRAM = [
    "--",
    sys.executable,
    "-m",
    "pgle.workloads",
    "fsdp",
    "--compile-only",
    "--layers",
    "1",
    "--devices",
    "{devices}",
]
BATCH = ["--batch", "{n*devices}"]


def scaled(
    capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> dict[str, object]:
    assert run(["scale", "--json", *words]) == code
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    assert violations(found) == []
    return found


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The folder of the answers: what one test had compiled is there for the others."""
    return ["-o", str(tmp_path_factory.mktemp("scale") / "out")]


def sizes(
    capsys: pytest.CaptureFixture[str], out: list[str], devices: str, values: str
) -> dict[str, object]:
    words = ["--devices", devices, "--vary", f"n={values}", *out, *PROGRAM, *BATCH]
    return scaled(capsys, *words)


def test_sizes_variants_a_refusal_and_the_same_again(
    out: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = sizes(capsys, out, "3,8,16", "1")
    refused, eight, sixteen = first["rows"]
    assert "IndivisibleError" in refused["failure"]
    assert [item["fabric"] for item in eight["by_collective"]] == ["NVLink"] * len(
        eight["by_collective"]
    )
    assert {item["hosts"] for item in sixteen["by_collective"]} == {2}
    assert eight["efficiency"] == 1 > sixteen["efficiency"]
    assert first["network_is"] == "assumed"
    more = sizes(capsys, out, "8", "1,4")
    assert more["resumed"] == 2
    same, twice = more["rows"][0], more["rows"][1]
    assert same == eight | {"wall_s": same["wall_s"]}
    assert twice["tflops"] * twice["predicted_us"] == pytest.approx(
        4 * same["tflops"] * same["predicted_us"]
    )
    modules = sorted(Path(out[1]).glob("rows/*-n=1/captured/*train_step*"))
    files = scaled(capsys, *map(str, modules))
    assert [item["devices"] for item in files["rows"]] == [8, 16]
    assert files["rows"][1]["predicted_us"] == pytest.approx(
        sixteen["predicted_us"], rel=0.03
    )  # all costs estimated


def test_a_size_has_the_account_of_its_rehearsal(
    out: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (row,) = sizes(capsys, out, "8", "1")["rows"]
    words = [word.replace("{devices}", "8") for word in (*PROGRAM, "--batch", "8")]
    assert run(["rehearse", "--json", "--devices", "8", *words]) == 0
    rehearsed = json.loads(capsys.readouterr().out)["account"]
    assert row["account"]["opportunities"]
    assert row["account"] == rehearsed


def test_the_largest_batch_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--devices",
        "4",
        "--vary",
        "n=1,4096",
        "--fit",
        "n",
        "-o",
        str(tmp_path / "out"),
        *PROGRAM,
    ]
    (row,) = scaled(capsys, *words, *BATCH)["rows"]
    assert (row["values"], row["fits"]) == ({"n": "1"}, True)
    assert row["tried"]["4096"] > row["limit_bytes"] > row["tried"]["1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--devices", "8", "--vary", "mesh=a", *PROGRAM],
            "--vary mesh: is not in the command",
        ),
        (["--devices", "eight", *PROGRAM], "--devices eight: is not a list of sizes"),
        (["--devices", "8", "--measured", "8s", *PROGRAM], "write 8=1.56s"),
        (
            ["--devices", "8", "--measured", "16=8s", *PROGRAM],
            "no step is predicted for 16 GPUs; add 16 to --devices",
        ),
        (
            ["--devices", "8", "--network", "50GB", *PROGRAM],
            "'50GB' is no bandwidth: say 50GB/s or 400Gbit/s",
        ),
        (["--devices", "8", "--fit", "n", *PROGRAM], "--fit n: is not varied"),
        (["--devices", "8", "--", "no-such-program-x"], "no such program"),
    ],
)
def test_a_bad_command_line_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["scale", *words]) == 2
    assert said in capsys.readouterr().err
