"""`pgle diff`, driven through the command line."""

import json

from pgle.cli.main import run

OLD, NEW = (
    "maxtext_pgle/llama2_70b_bf16_pgle_128vm.pbtxt",
    "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt",
)


def test_costs_that_are_no_time_do_not_break_the_totals(tmp_path, capsys):
    path = tmp_path / "huge.pbtxt"
    path.write_text(
        "".join(f'costs {{ name: "x{at}" cost_us: 1e308 }}\n' for at in range(2))
    )
    assert run(["diff", str(path), str(path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the totals leave out 4 costs that are over 30 years" in said


def test_a_profile_does_not_differ_from_itself(testdata, capsys):
    assert run(["diff", str(testdata / OLD), str(testdata / OLD)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1] == "No change beyond noise"
    assert "602 the same" in out


def test_changes_are_listed_largest_first(testdata, capsys):
    assert run(["diff", str(testdata / OLD), str(testdata / NEW)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith("reduce-scatter")][:2]
    assert [(row[0], row[-1]) for row in rows] == [
        ("reduce-scatter.63", "added"),
        ("reduce-scatter.42", "removed"),
    ]
    assert any("498 changed, 207 added, 95 removed, 9 the same" in one for one in lines)


def test_json_counts_and_totals(testdata, capsys):
    assert run(["diff", str(testdata / OLD), str(testdata / NEW), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["schema"] == "pgle.diff/1"
    assert result["counts"]["changed"] == 498
    assert len(result["differences"]) == 498 + 207 + 95
    largest = result["differences"][0]
    assert (largest["name"], largest["change"], largest["old_us"]) == (
        "reduce-scatter.63",
        "added",
        None,
    )
    assert largest["delta_us"] == largest["new_us"]


def test_no_line_is_wider_than_100_columns(testdata, capsys):
    run(["diff", str(testdata / OLD), str(testdata / NEW), "--all"])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert (
        max(len(line) for line in lines if not line.startswith("Next")) <= 100
    )  # commands can be copied


def test_a_missing_profile_is_answered_in_one_line(testdata, tmp_path, capsys):
    assert run(["diff", str(testdata / OLD), str(tmp_path / "x.pbtxt")]) == 2
    assert capsys.readouterr().err.endswith("x.pbtxt: no such file; check the path\n")
