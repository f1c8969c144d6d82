"""`pgle merge`, driven through the command line; ranks against converting their traces together."""

import json
import re

import pytest

from pgle.cli.main import run
from pgle.costs.profile.files import profile_files, read_profile
from pgle.costs.profile.value import Cost, CostKind, Profile
from pgle.files import write_files

pytestmark = pytest.mark.usefixtures("read_once")

OLD, NEW = (
    "maxtext_pgle/llama2_70b_bf16_pgle_128vm.pbtxt",
    "maxtext_pgle/llama2_70b_bf16_pgle_16vm.pbtxt",
)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Profiles of two ranks of a real run, each alone and converted together."""
    from pathlib import Path

    data = Path(__file__).parent.parent.parent / "testdata/pax_fsdp4"
    folder = tmp_path_factory.mktemp("ranks")
    zero, three, dump = (
        str(data / "proc0.sqlite"),
        str(data / "proc3.sqlite"),
        str(data / "proc0/dump"),
    )
    assert run(["convert", zero, "--hlo", dump, "-o", str(folder / "rank0.pbtxt")]) == 0
    assert run(["convert", three, "--hlo", dump, "-o", str(folder / "rank3.pbtxt")]) == 0
    assert run(["convert", zero, three, "--hlo", dump, "-o", str(folder / "together.pbtxt")]) == 0
    return folder


def test_merged_ranks_cost_no_less_than_traces_converted_together(converted, tmp_path, capsys):
    out = tmp_path / "merged.pb"
    assert (
        run(
            [
                "merge",
                str(converted / "rank0.pbtxt"),
                str(converted / "rank3.pbtxt"),
                "-o",
                str(out),
            ]
        )
        == 0
    )
    assert "23 collectives merged by the min of the inputs" in capsys.readouterr().out.replace(
        "\n", " "
    )
    merged, together = (
        {cost.name: cost.cost_us for cost in read_profile(path).costs if cost.kind == "collective"}
        for path in (out, converted / "together.pbtxt")
    )
    assert merged.keys() == together.keys()
    assert all(merged[name] >= cost_us for name, cost_us in together.items())
    assert sum(merged.values()) == pytest.approx(sum(together.values()), rel=0.02)


def test_a_merged_profile_keeps_what_its_inputs_say(converted, tmp_path):
    out = tmp_path / "merged.pbtxt"
    run(["merge", str(converted / "rank0.pbtxt"), str(converted / "rank3.pbtxt"), "-o", str(out)])
    provenance = read_profile(out).provenance
    assert [item["name"] for item in provenance["inputs"]] == ["rank0.pbtxt", "rank3.pbtxt"]
    assert provenance["modules"][0]["devices"] == 2
    assert provenance["modules"][0]["executions_used"] == 6


def test_published_profiles_merge_and_their_gaps_are_told(testdata, tmp_path, capsys):
    out = tmp_path / "merged.pbtxt"
    assert (
        run(
            [
                "merge",
                str(testdata / OLD),
                str(testdata / NEW),
                "-o",
                str(out),
                "--of",
                "runs",
                "--json",
            ]
        )
        == 0
    )
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["schema"] == "pgle.merge/2"
    assert result["written"]["names"] == len(read_profile(out)) == 809
    assert len(result["not_in_all_inputs"]) == 302
    assert "115 of 717 costs do not count" in captured.err


def test_equal_inputs_give_equal_bytes(testdata, tmp_path):
    for name in ("one.pbtxt", "two.pbtxt"):
        assert (
            run(["merge", str(testdata / OLD), str(testdata / NEW), "-o", str(tmp_path / name)])
            == 0
        )
    assert (tmp_path / "one.pbtxt").read_bytes() == (tmp_path / "two.pbtxt").read_bytes()
    assert (tmp_path / "one.pbtxt.json").read_bytes() == (tmp_path / "two.pbtxt.json").read_bytes()


def test_statistics_can_be_chosen(tmp_path):
    for name, cost_us in (("a.pb", 10.0), ("b.pb", 20.0)):
        cost = Cost(
            "loop_fusion", cost_us, kind=CostKind.COMPUTE, samples=1, min_us=cost_us, max_us=cost_us
        )
        write_files(profile_files(tmp_path / name, Profile((cost,), {"tool": "pgle"})))
    for stat, expected in (("mean", 15.0), ("max", 20.0), ("p90", 19.0)):
        out = tmp_path / f"{stat}.pb"
        run(
            [
                "merge",
                str(tmp_path / "a.pb"),
                str(tmp_path / "b.pb"),
                "-o",
                str(out),
                "--stat",
                stat,
            ]
        )
        assert read_profile(out).costs[0].cost_us == expected


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["{old}", "-o", "{tmp}/x.txt"], "XLA ignores profiles of any other name.*name it x.pbtxt"),
        (["{old}", "{old}", "-o", "{tmp}/x.pb"], "given twice"),
        (["{old}", "-o", "{tmp}/x.pb", "--stat", "p101"], "unknown statistic 'p101'"),
        (["{tmp}/none.pb", "-o", "{tmp}/x.pb"], "no such file"),
    ],
)
def test_bad_usage_is_answered_in_one_line_and_writes_nothing(
    arguments, said, testdata, tmp_path, capsys
):
    filled = [argument.format(old=testdata / OLD, tmp=tmp_path) for argument in arguments]
    assert run(["merge", *filled]) == 2
    err = capsys.readouterr().err
    assert re.search(said, err)
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_kept_without_force(testdata, tmp_path, capsys):
    out = tmp_path / "x.pb"
    out.write_bytes(b"mine")
    assert run(["merge", str(testdata / OLD), "-o", str(out)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert out.read_bytes() == b"mine"
