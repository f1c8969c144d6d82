"""`pgle analyze` on real recordings: the numbers add up, the text fits, and what cannot be known is said."""

import json
from pathlib import Path

import pytest

from pgle.cli.main import run

ROOT = Path(__file__).parents[2]
PAX = ROOT / "testdata" / "pax_fsdp4"
RANKS = [str(PAX / f"{rank}.sqlite") for rank in ("proc0", "proc3")]
HLO = ["--hlo", str(PAX / "proc0" / "dump")]
PYTORCH = ROOT / "testdata" / "nsys_exports" / "h100_2gpu_1s.sqlite"


def analysed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run(["analyze", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_parts_of_the_step_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = analysed(capsys, *RANKS, *HLO)
    assert found["schema"] == "pgle.analyze/1"
    names = ("compute_us", "exposed_communication_us", "exposed_copy_us", "idle_us")
    assert sum(found["breakdown"][name] for name in names) == pytest.approx(found["step_us"], rel=1e-12)
    for rank in found["ranks"]:
        parts = (rank[name.replace("_us", "_ns")] for name in names)
        assert sum(parts) == rank["window_ns"]


def test_a_finding_says_its_rule_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    findings = analysed(capsys, *RANKS, *HLO)["findings"]
    assert findings
    assert all({"id", "share", "evidence", "remedy", "rule", "source"} <= finding.keys() for finding in findings)


@pytest.mark.parametrize("inputs", [[*RANKS, *HLO], RANKS, [str(PYTORCH)]])
def test_the_text_fits_80_columns_and_ends_in_what_to_do(
    inputs: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["analyze", *(item.replace(f"{ROOT}/", "") for item in inputs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    last = " ".join(lines[lines.index("", len(lines) - 6) + 1 :])
    assert last.startswith(("Begin with ", "With the HLO ", "Record the program "))


def test_a_program_without_xla_is_taken_apart_by_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    found = analysed(capsys, str(PYTORCH))
    assert [rank["device"]["ordinal"] for rank in found["ranks"]] == [0, 1]
    assert found["breakdown"]["exposed_copy_us"] > 0.9 * found["step_us"]  # its 1.9 s of copies from the host
    assert not found["collectives"]
    assert any("cannot be told" in line for line in found["warnings"])


def test_what_is_no_export_is_refused_with_its_own_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["analyze", str(ROOT / "testdata" / "nsys_exports" / "healthy_1pct.sqlite")]) == 2
    assert "lacks the column" in capsys.readouterr().err


def test_cpu_times_are_not_held_against_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    found = analysed(capsys, str(ROOT / "testdata" / "jax_xplane" / "cpu_4dev_jax_0_12_0.xplane.pb"))
    assert found["hardware"] is None
    assert not {"slow-matmul", "slow-collective"} & {finding["id"] for finding in found["findings"]}
    assert any("CPU devices" in line for line in found["warnings"])
