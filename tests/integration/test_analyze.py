"""`pgle analyze` on real recordings: the numbers add up, the text fits, and what cannot be known is
said.
"""

import json
import shutil
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run import analyze
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import StageRecord, extend_manifest
from pgle.xla.protos import xplane_pb2

pytestmark = pytest.mark.usefixtures("read_once")

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
    assert sum(found["breakdown"][name] for name in names) == pytest.approx(
        found["step_us"], rel=1e-12
    )
    for rank in found["ranks"]:
        parts = (rank[name.replace("_us", "_ns")] for name in names)
        assert sum(parts) == rank["window_ns"]


def test_a_finding_says_its_rule_and_its_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    findings = analysed(capsys, *RANKS, *HLO)["findings"]
    assert findings
    assert all(
        {"id", "share", "evidence", "remedy", "rule", "source"} <= finding.keys()
        for finding in findings
    )


def test_a_folder_of_many_ranks_is_searched_once_for_a_dump(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[Path] = []
    monkeypatch.setattr(analyze, "dump_near", lambda folder, _: searched.append(folder))
    assert run(["analyze", *RANKS]) == 0
    assert searched == [PAX]


@pytest.mark.parametrize("inputs", [[*RANKS, *HLO], RANKS])
def test_the_text_fits_80_columns_and_ends_in_what_to_do(
    inputs: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["analyze", *(item.replace(f"{ROOT}/", "") for item in inputs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    ends = ("Next: ", "Done: ", "Now edit: ", "Now: ")
    last = next(line for line in reversed(lines) if line.startswith(ends))
    said = " ".join(lines[lines.index(last) :])
    if HLO[0] in inputs:
        assert said.startswith("Now edit: base_ops.py:42 to save ")
        assert "  jax.nn.dot_product_attention(" in said
    else:
        assert "--hlo=testdata/pax_fsdp4/proc0/dump" in said


def test_a_recording_without_xla_ranges_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["analyze", str(PYTORCH)]) == 2
    assert "record a JAX program" in capsys.readouterr().err


def test_what_is_no_export_is_refused_with_its_own_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert (
        run(
            ["analyze", str(ROOT / "testdata" / "nsys_exports" / "healthy_1pct.sqlite")]
        )
        == 2
    )
    assert "lacks the column" in capsys.readouterr().err


def test_cpu_times_are_not_held_against_a_gpu(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = analysed(
        capsys, str(ROOT / "testdata" / "jax_xplane" / "cpu_4dev_jax_0_12_0.xplane.pb")
    )
    assert found["hardware"] is None
    assert not {"slow-matmul", "slow-collective"} & {
        finding["id"] for finding in found["findings"]
    }
    assert any("CPU devices" in line for line in found["warnings"])


@pytest.mark.parametrize(
    ("vendor", "major", "name", "said"),
    [
        (b"Other", 9, None, "recorded on GPUs of Other, of which pgle knows no peaks"),
        (b"AMD", 9, "mi300x", None),
        (b"Nvidia", 8, "a100-40gb", None),
        (b"", 9, "h100-sxm", None),
    ],
)
def test_the_gpu_that_recorded_a_trace_is_what_it_is_held_against(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    vendor: bytes,
    major: int,
    name: str | None,
    said: str | None,
) -> None:
    space = xplane_pb2.XSpace.FromString(
        (ROOT / "testdata/jax_xplane/jax08_gemm.xplane.pb").read_bytes()
    )
    for plane in space.planes:
        for stat in plane.stats:
            if plane.stat_metadata[stat.metadata_id].name == "device_vendor":
                stat.str_value = vendor.decode()
            if plane.stat_metadata[stat.metadata_id].name == "compute_cap_major":
                stat.int64_value = major
    (tmp_path / "a.xplane.pb").write_bytes(space.SerializeToString())
    found = analysed(capsys, str(tmp_path / "a.xplane.pb"))
    assert found["hardware"] == name
    assert [line.split(":")[0] for line in found["warnings"] if "GPU" in line] == (
        [said] if said else []
    )


def test_layers_memory_and_overlap_of_a_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = analysed(capsys, *RANKS, *HLO)
    forward, backward = (
        sum(
            layer["us"]
            for layer in found["layers"]["scopes"]
            if layer["phase"] == phase
        )
        for phase in ("forward", "backward")
    )
    assert backward > forward > 0.3 * found["step_us"]
    assert 0.2 < found["layers"]["mfu"] < 0.25
    memory = found["memory"]
    names = ("arguments_bytes", "outputs_bytes", "constants_bytes", "temporary_bytes")
    assert (
        sum(memory[name] for name in names)
        == memory["peak_bytes"]
        < memory["limit_bytes"]
        < memory["device_bytes"]
    )
    assert (
        found["overlap"]["hideable_us"]
        <= found["breakdown"]["exposed_communication_us"]
    )
    assert all(item["why_exposed"] for item in found["collectives"][:5])
    shown = {item["name"]: item["transfer_exposed_us"] for item in found["collectives"]}
    assert {
        room["name"]: room["exposed_us"] for room in found["overlap"]["collectives"]
    } == pytest.approx(shown)
    assert found["against"] is None


def test_a_schedule_without_a_trace_is_simulated_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    dump = ROOT / "testdata" / "hlo" / "jax-0.10.2" / "async"
    found = analysed(capsys, str(dump))
    assert any("no GPU ran this" in line for line in found["warnings"])
    assert run(["predict", str(dump), "--target", "a100", "--json"]) == 0
    predicted = json.loads(capsys.readouterr().out)
    assert found["step_us"] == pytest.approx(predicted["step_us"], rel=1e-3)
    exposed = found["breakdown"]["exposed_communication_us"]
    assert exposed == pytest.approx(
        predicted["breakdown"]["exposed_communication_us"], rel=1e-3
    )


@pytest.mark.parametrize("release", ["jax-0.10.2", "jax-0.12.0.1"])
def test_collectives_have_the_names_of_profile_and_prediction(
    release: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dump = str(ROOT / "testdata" / "hlo" / release / "sync")
    found = {
        item["name"]: item["trace_name"]
        for item in analysed(capsys, dump, "--target", "a100")["collectives"]
    }
    assert any(name != traced for name, traced in found.items())
    assert run(["predict", dump, "--target", "a100", "--json"]) == 0
    assert {
        item["name"] for item in json.loads(capsys.readouterr().out)["collectives"]
    } == set(found)


@pytest.fixture
def profile_run(tmp_path: Path) -> Path:
    """A run directory with one traced rank, recorded as `pgle profile` does."""
    run_dir = tmp_path / "run"
    stage = RunDirectory(run_dir).stage("profile")
    (stage.path / "trace" / "rank0000").mkdir(parents=True)
    shutil.copy(
        ROOT / "testdata" / "jax_xplane" / "cpu_4dev_jax_0_12_0.xplane.pb",
        stage.path / "trace" / "rank0000",
    )
    extend_manifest(
        run_dir,
        StageRecord("profile", mode="sync", started="2026-01-01T00:00:00", exit_code=0),
    )
    return run_dir


def test_of_a_profile_run_no_saving_is_claimed(
    profile_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["analyze", str(profile_run)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "This is a profile run" in text and "Make collectives asynchronous" not in text
    )
    assert (
        "pgle tune" not in text
    )  # the room for flags is that of the performance run, which is not there yet
    assert f"Next: pgle convert {profile_run}" in text


def test_of_a_run_directory_the_traced_performance_run_is_looked_at(
    profile_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (profile_run / "perf").symlink_to(profile_run / "profile")
    extend_manifest(
        profile_run,
        StageRecord("perf", mode="perf", started="2026-01-01T00:01:00", exit_code=0),
    )
    assert run(["analyze", str(profile_run)]) == 0
    assert "profile run" not in capsys.readouterr().out


def test_the_largest_loss_is_named_first_and_groups_explain_what_is_exposed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["analyze", *RANKS, *HLO]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = analysed(capsys, *RANKS, *HLO)["account"]["opportunities"]
    saved = [item["expected"] for item in found if item["expected"] is not None]
    assert saved == sorted(saved, reverse=True)
    assert found[0]["kind"] == "attention that is not fused"
    assert lines[1].startswith(f"! {found[0]['title']}: saves {saved[0] * 100:.1f} %")
    exposed = next(
        float(line.split()[2])
        for line in lines
        if line.startswith("exposed communication")
    )
    groups = [
        float(line.split("×")[1].split()[1])
        for line in lines
        if line.startswith("  ") and "×" in line
    ]
    assert 0.95 * exposed <= sum(groups) + 0.1 and len(groups) <= 3


def test_the_rows_of_a_comparison_add_up_to_the_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert (
        run(
            [
                "analyze",
                RANKS[0],
                "--against",
                RANKS[1],
                *HLO,
                "--against-hlo",
                str(PAX / "proc3/dump"),
            ]
        )
        == 0
    )
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    first = next(
        at for at, words in enumerate(lines) if words[:2] == ["change", "what"]
    )
    last = next(at for at, words in enumerate(lines) if words[:1] == ["step"])
    changes = [float(next(word for word in words if word[0] in "+−" and word[1:].isdigit()).replace("−", "-"))
               for words in lines[first + 1 : last + 1]]  # fmt: skip
    assert sum(changes[:-1]) == pytest.approx(changes[-1], abs=len(changes))


def test_stages_that_were_not_traced_are_simulated_with_the_costs_of_their_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    extend_manifest(
        tmp_path,
        StageRecord("perf", mode="perf", started="2026-01-01T00:01:00", exit_code=0),
    )
    (tmp_path / "profile.pbtxt").write_text(
        'costs { name: "all-gather-start" cost_us: 500 }\n'
    )
    for name in ("baseline", "perf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "hlo").symlink_to(
            ROOT / "testdata" / "hlo" / "jax-0.10.2" / "async"
        )
    found = analysed(
        capsys, str(tmp_path / "perf"), "--against", str(tmp_path / "baseline")
    )
    assert found["against"]["delta_us"] == 0
    assert max(item["time_us"] for item in found["collectives"]) == pytest.approx(500)
    assert any("perf was not traced" in line for line in found["warnings"])


def test_steps_that_take_no_time_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    space = xplane_pb2.XSpace.FromString(
        (ROOT / "testdata/jax_xplane/jax08_gemm.xplane.pb").read_bytes()
    )
    for event in (
        event for plane in space.planes for line in plane.lines for event in line.events
    ):
        event.duration_ps, event.offset_ps = 0, 0
    (tmp_path / "a.xplane.pb").write_bytes(space.SerializeToString())
    assert run(["analyze", str(tmp_path / "a.xplane.pb")]) == 2
    assert "54 without a time stamp" in capsys.readouterr().err


def test_a_stage_that_was_not_traced_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "perf").mkdir()
    (tmp_path / "manifest.json").write_text("{}")
    assert run(["analyze", str(tmp_path / "perf")]) == 2
    error = capsys.readouterr().err
    assert "was not traced" in error
    assert "--capture" in error
