"""`pgle show`, driven through the command line."""

import json
import re

import pytest

from pgle.cli.main import run
from pgle.costs.profile.files import profile_files
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile
from pgle.files import write_files

PUBLISHED = "maxtext_pgle/llama2_70b_bf16_pgle_128vm.pbtxt"


@pytest.fixture
def described(tmp_path):
    path = tmp_path / "step.pb"
    costs = (
        Cost(
            "all-gather-start",
            800.0,
            kind=CostKind.COLLECTIVE,
            opcode="all-gather",
            shape="bf16[4096]",
            samples=18,
            min_us=790.0,
            max_us=830.0,
            spread=0.02,
        ),
        Cost(
            "loop_fusion",
            200.0,
            kind=CostKind.COMPUTE,
            opcode="fusion",
            shape="f32[8]",
            samples=18,
        ),
        Cost("loop_fusion.1", 5.0, kind=CostKind.COMPUTE, origin=Origin.ESTIMATED),
    )
    write_files(
        profile_files(
            path,
            Profile(
                costs,
                {
                    "tool": "pgle 1",
                    "inputs": [
                        {"name": "rank0.sqlite", "format": "nsys", "version": "1"}
                    ],
                },
            ),
        )
    )
    return path


def test_instructions_come_with_share_samples_and_shape(described, capsys):
    assert run(["show", str(described)]) == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("all-gather-start"))
    assert row.split() == [
        "all-gather-start",
        "800",
        "79.6",
        "%",
        "collective",
        "18",
        "2.0",
        "%",
        "measured",
    ]
    assert run(["show", str(described), "--section", "origin"]) == 0
    assert "from rank0.sqlite, by pgle 1" in capsys.readouterr().out


def test_estimated_costs_are_labelled(described, capsys):
    run(["show", str(described)])
    out = capsys.readouterr().out
    assert "2 measured, 1 estimated" in out.splitlines()[0]
    assert (
        next(line for line in out.splitlines() if line.startswith("loop_fusion.1"))
        .rstrip()
        .endswith("estimated")
    )


def test_a_profile_without_sidecar_has_guessed_kinds(testdata, capsys):
    assert run(["show", str(testdata / PUBLISHED)]) == 0
    out = capsys.readouterr().out
    assert "no sidecar: kinds are guessed" in out
    assert "collective?" in out
    assert "… and 592 more (--all lists them)" in out
    assert len(out.splitlines()) <= 22


def test_duplicates_stand_below_with_what_xla_takes(testdata, capsys):
    run(["show", str(testdata / PUBLISHED), "--section", "findings"])
    out = capsys.readouterr().out
    assert "warning: names with several costs (19): XLA takes the last" in out
    assert "62: 1 µs to 15.85 ms → 1 µs" in out
    assert out.count("XLA takes the last") == 1  # not again in each row


def test_no_line_is_wider_than_100_columns(testdata, capsys):
    for path in (testdata / "maxtext_pgle").glob("*.pbtxt"):
        run(["show", str(path), "--all"])
        lines = capsys.readouterr().out.splitlines()[1:]
        assert (
            max(len(line) for line in lines if not line.startswith("Next")) <= 100
        )  # commands can be copied


def test_json_holds_all_instructions_and_findings(testdata, capsys):
    assert run(["show", str(testdata / PUBLISHED), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "pgle.show/1"
    assert (result["entries"], result["names"], len(result["instructions"])) == (
        717,
        602,
        602,
    )
    assert result["origins"] == {"unknown": 602}
    assert [item["name"] for item in result["findings"] if item["fault"] == "loop"] == [
        "while.6.0",
        "while.5.0",
    ]
    loops = [item for item in result["instructions"] if item["kind"] == "loop"]
    assert all(item["share"] is None and item["kind_is_guess"] for item in loops)


def test_costs_that_are_no_numbers_do_not_break_the_table(tmp_path, capsys):
    path = tmp_path / "odd.pbtxt"
    path.write_text(
        'costs { name: "a" cost_us: nan } costs { name: "b\\033[2J" cost_us: inf } costs { cost_us: -1 }'
    )
    assert run(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "costs that are not finite (2)" in out
    assert "negative costs (1)" in out


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("x.pbtxt", b"", "empty file"),
        ("x.pbtxt", b"costs {", "XLA would not parse it"),
        ("x.pb", b'costs { name: "a" cost_us: 1 }', "rename it to x.pbtxt"),
        ("x.sqlite", b"SQLite format 3\0", "truncated"),
    ],
)
def test_wrong_files_are_answered_in_one_line(name, content, said, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert run(["show", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_names_stay_whole_on_a_narrow_terminal(described, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["show", str(described)]) == 0
    assert re.search(r"\nall-gather-start +800 +79.6 % ", capsys.readouterr().out)


def test_costs_that_are_no_time_are_found_and_not_in_the_total(tmp_path, capsys):
    path = tmp_path / "huge.pbtxt"
    path.write_text(
        "".join(
            f'costs {{ name: "fusion.{at}" cost_us: {cost} }}\n'
            for at, cost in enumerate([1e308] * 2 + [5])
        )
    )
    assert run(["show", str(path), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total_us"] == 5
    assert [item["fault"] for item in result["findings"]] == ["huge", "huge"]


def test_waiting_for_the_slowest_rank_is_said(tmp_path, capsys):
    path = tmp_path / "skewed.pbtxt"
    costs = (
        Cost("a", 50.0, kind=CostKind.COMPUTE, slowest_us=62.5),
        Cost("b", 50.0, kind=CostKind.COMPUTE),
    )
    write_files(profile_files(path, Profile(costs)))
    assert run(["show", str(path)]) == 0
    line = "compute takes 12 µs (12.5 %) longer on the slowest rank, most in a (50 µs, there 62 µs)"
    assert line in capsys.readouterr().out


def test_a_name_that_nobody_reads_to_its_end_is_cut_with_its_length(tmp_path, capsys):
    path = tmp_path / "x.pbtxt"
    path.write_text(f'costs {{ name: "{"n" * 1_000_000}" cost_us: 5 }}\n' * 2)
    assert run(["show", str(path), "--section", "findings"]) == 0
    text = capsys.readouterr().out
    assert len(text) < 5000
    assert (
        text.count("… (1,000,000 characters)") == 2
    )  # the cost, and the finding of a name with several
    assert run(["show", str(path), "--json"]) == 0
    assert (
        len(json.loads(capsys.readouterr().out)["instructions"][0]["name"]) == 1_000_000
    )
