"""`pgle ranks` on dumps, logs and run directories that are made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgle.cli.main import run
from pgle.run.directory.directory import RANK_FILES

MODULE = """HloModule jit_step, is_scheduled=true, num_partitions=2

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8]{{0}} parameter(0)
{lines}
  ROOT %r = f32[8]{{0}} copy(%p)
}}
"""
GATHER = "  %ag = f32[16]{0} all-gather(%p), channel_id=1, replica_groups={{0,1}}, dimensions={0}"
REDUCE = "  %ar = f32[8]{0} all-reduce(%p), channel_id=2, replica_groups={{0,1}}, to_apply=%add"
NAME = "module_0001.jit_step"
CALL = (
    "node:{pid}:{pid} [0] NCCL INFO {kind}: opCount {number:x} sendbuff 0x1 recvbuff 0x2 "
    "count 64 datatype 7 op 0 root 0 comm 0x{pid} [nranks=2] stream 0x3\n"
)


def dump(folder: Path, *lines: str, flags: str = "") -> str:
    """A folder as XLA dumps into."""
    folder.mkdir(parents=True)
    text = MODULE.format(lines="\n".join(lines))
    (folder / f"{NAME}.sm_9.0_gpu_after_optimizations.txt").write_text(text)
    (folder / f"{NAME}.debug_options").write_text(flags)
    return str(folder)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict]:
    code = run(["ranks", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_equal_dumps_are_good(tmp_path, capsys):
    paths = [dump(tmp_path / f"rank{rank}", GATHER, REDUCE) for rank in range(2)]
    code, found = answer(capsys, *paths)
    assert (code, found["ok"], found["ranks"]) == (0, True, ["0", "1"])


def test_a_difference_has_ranks_place_collectives_and_cause(tmp_path, capsys):
    one = dump(tmp_path / "rank0", GATHER, REDUCE)
    two = dump(tmp_path / "rank1", REDUCE, GATHER, flags="xla_gpu_autotune_level: 0\n")
    code, found = answer(capsys, one, two)
    assert code == 1
    assert found["differences"] == [
        {
            "module": "jit_step",
            "effect": "hang",
            "ranks": [["0"], ["1"]],
            "communicator": [0, 1],
            "position": 1,
            "collectives": [
                "all-gather f32[16] over 2 devices",
                "all-reduce f32[8] over 2 devices",
            ],
            "cause": "--xla_gpu_autotune_level differs (not set; 0)",
        }
    ]


def test_one_folder_may_hold_the_folders_of_all_ranks(tmp_path, capsys):
    for rank in range(3):
        dump(tmp_path / "dumps" / f"rank{rank}", GATHER)
    code, found = answer(capsys, str(tmp_path / "dumps"))
    assert (code, found["ranks"]) == (0, ["0", "1", "2"])


def test_profiles_are_compared_by_content(tmp_path, capsys):
    option = "xla_gpu_pgle_profile_file_or_directory_path"
    for name, text in (("a", "costs {}"), ("b", "costs {}"), ("c", "")):
        (tmp_path / f"{name}.pbtxt").write_text(text)
    orders = {"a": (GATHER, REDUCE), "b": (REDUCE, GATHER), "c": (REDUCE,)}
    paths = {}
    for name, lines in orders.items():
        flags = f'{option}: "{tmp_path}/{name}.pbtxt"\n'
        paths[name] = dump(tmp_path / f"rank{name}", *lines, flags=flags)
    _, same = answer(capsys, paths["a"], paths["b"])
    _, other = answer(capsys, paths["a"], paths["c"])
    assert same["differences"][0]["cause"].startswith("no known setting differs")
    assert other["differences"][0]["cause"].startswith("the profile differs (sha256 ")


def test_a_rank_without_a_dump_cannot_be_known(tmp_path, capsys):
    one = dump(tmp_path / "rank0", GATHER)
    log = tmp_path / "rank1.log"
    log.write_text("step 1: 0.5 s\n")
    code, found = answer(capsys, one, str(log))
    assert (code, found["differences"]) == (1, [])
    assert found["unknown"] == ["no dump of jit_step from rank 1: its order is unknown"]


def test_a_dump_that_was_cut_short_is_named_and_the_others_are_compared(
    tmp_path, capsys
):
    paths = [dump(tmp_path / f"rank{rank}", GATHER) for rank in range(3)]
    (file,) = Path(paths[1]).glob("*.txt")
    file.write_text(file.read_text()[:200])
    code, found = answer(capsys, *paths)
    assert (code, found["differences"]) == (1, [])
    assert found["unknown"][0].startswith("rank 1: ")
    assert (
        found["unknown"][1] == "no dump of jit_step from rank 1: its order is unknown"
    )


def test_one_rank_alone_is_refused(tmp_path, capsys):
    assert run(["ranks", dump(tmp_path / "rank0", GATHER)]) == 2
    assert "what one process left" in capsys.readouterr().err


def test_a_run_directory_of_one_rank_is_refused(tmp_path, capsys):
    assert run(["ranks", run_directory(tmp_path / "run", [[GATHER]])]) == 2
    assert "what one process left" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_holds_nothing_is_refused(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    assert run(["ranks", str(tmp_path / name)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def run_directory(path: Path, orders: list[list[str]], **facts) -> str:
    """A run directory whose perf stage has a rank for each order."""
    stage = path / "perf"
    for rank, lines in enumerate(orders):
        suffix = f".rank{rank:04d}" if rank else ""
        names = {
            name: text.format(suffix=suffix, label="")
            for name, text in RANK_FILES.items()
        }
        dump(stage / names["hlo"], *lines)
        (stage / names["log"]).write_text("step 1: 0.5 s\n")
        known = {"process_index": rank, "local_devices": 1, **facts}
        (stage / names["facts"]).write_text(json.dumps(known))
    (path / "manifest.json").write_text('{"schema": "pgle.manifest/1", "stages": []}')
    return str(path)


def test_a_run_directory_has_all_ranks(tmp_path, capsys):
    run_dir = run_directory(tmp_path / "run", [[GATHER, REDUCE], [REDUCE, GATHER]])
    code, found = answer(capsys, run_dir)
    assert (code, found["ranks"], len(found["differences"])) == (1, ["0", "1"], 1)
    assert found["warnings"] == []


def test_ranks_of_one_launcher_have_one_log(tmp_path, capsys):
    run_dir = run_directory(tmp_path / "run", [[GATHER], [GATHER, REDUCE]])
    (tmp_path / "run" / "perf" / "output.rank0001.log").unlink()
    code, found = answer(capsys, run_dir)
    assert (code, found["ranks"], len(found["differences"])) == (1, ["0", "1"], 1)


def test_a_rank_that_left_nothing_is_missed(tmp_path, capsys):
    run_dir = run_directory(tmp_path / "run", [[GATHER], [GATHER]], process_count=3)
    code, found = answer(capsys, run_dir)
    assert (code, found["unknown"]) == (1, ["1 of 3 ranks have left nothing"])


def nccl(path: Path, pid: int, *kinds: str, first: int = 0) -> str:
    lines = [
        CALL.format(pid=pid, kind=kind, number=number)
        for number, kind in enumerate(kinds, first)
    ]
    path.write_text("".join(lines))
    return str(path)


def test_nccls_own_lines_name_the_call(tmp_path, capsys):
    one = nccl(
        tmp_path / "rank0.log", 11, "AllReduce", "AllReduce", "AllGather", first=650
    )
    two = nccl(tmp_path / "rank1.log", 12, "AllGather", "AllGather", first=651)
    code, found = answer(capsys, one, two)
    assert code == 1
    assert found["differences"][0]["collectives"] == [
        "AllReduce f32[64] over 2 devices",
        "AllGather f32[64] over 2 devices",
    ]
    assert found["differences"][0]["cause"] == "opCount 28b in NCCL's log"


def test_a_rank_that_is_behind_in_nccls_lines_is_no_difference(tmp_path, capsys):
    one = nccl(tmp_path / "rank0.log", 11, "AllReduce", "AllGather", "AllReduce")
    two = nccl(tmp_path / "rank1.log", 12, "AllReduce", "AllGather")
    code, found = answer(capsys, one, two)
    assert (code, found["differences"]) == (0, [])


def test_logs_tell_which_rank_used_another_profile_and_where_it_waits(tmp_path, capsys):
    begin = "I1128 05:12:11.407597   25122 gpu_hlo_schedule.cc:377] Using PGLE profile from {}\n"
    stuck = (
        "I1128 05:13:11.000000   25122 rendezvous.cc:31] This thread has been waiting for "
        "`acquire clique` for 10 seconds and may be stuck.\n"
    )
    (tmp_path / "rank0.log").write_text(begin.format("/shared/p.pbtxt") + stuck)
    (tmp_path / "rank1.log").write_text(begin.format("/local/p.pbtxt"))
    code, found = answer(capsys, str(tmp_path))
    assert code == 1
    assert (
        "the profile differs (/shared/p.pbtxt; /local/p.pbtxt)" in found["unknown"][1]
    )
    assert found["stuck"][0].startswith("rank 0: This thread has been waiting")


def test_one_log_with_labels_is_of_several_ranks(tmp_path, capsys):
    line = (
        "{}: I1128 05:12:11.407597   25122 gpu_hlo_schedule.cc:377] "
        "Using PGLE profile from /{}.pbtxt\n"
    )
    (tmp_path / "job.log").write_text(line.format(0, "a") + line.format(1, "b"))
    code, found = answer(capsys, str(tmp_path / "job.log"))
    assert (code, found["ranks"]) == (1, ["0", "1"])
    assert found["unknown"][1].startswith(
        "ranks 0 and 1 may differ: the profile differs"
    )
