"""Every command that pgle names as a next step can be typed: its options exist, and what it needs
is there.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from accounts import account, opportunity

import pgle.next
from pgle.account.value import OpportunityKind
from pgle.cli.main import COMMANDS, group
from pgle.next import PROFILE, Next, Sentence, to_way
from pgle.report import next_steps as report
from pgle.report import rehearse as rehearsal
from pgle.report import tune as tuning
from pgle.report.report import _following as run_page_way
from pgle.report.stages import after_auto
from pgle.report.start import folder_page
from pgle.requests.predictions import Rehearse
from pgle.run.analyze import RunFacts
from pgle.run.compare import compared_run, record_comparison
from pgle.run.directory.directory import RunDirectory
from pgle.run.directory.manifest import StageRecord, extend_manifest
from pgle.run.inputs import found_flags, next_command
from pgle.run.inputs.folder import contents_of
from pgle.run.rehearse_program import (
    Understood,
    advise_line,
    launch_of_program,
    measure_line,
    tune_line,
    understood,
)
from pgle.run.stages.stage import StageRequest
from pgle.schedule.predict import Gain
from pgle.steps.verdict import Verdict

ROOT = Path(__file__).parents[2]
PROGRAM = ("python", "train.py", "--name", "two words")
ASKED = {
    "command": PROGRAM,
    "mode": "async",
    "XLA_FLAGS": "--xla_gpu_enable_pipelined_all_gather=true",
    "capture": "simulated",
    "target": "a100",
    "devices": 8,
    "topology": None,
    "choose": None,
}
AS_IT_WAS = "--capture simulated --target a100 --devices 8 --flag=--xla_gpu_enable_pipelined_all_gather=true"
MODULE = "jax_ir0000_jit_f_compile.mlir"
PROFILED = ["profile/trace/rank0000.nsys-rep"]
CONVERTED = [*PROFILED, "profile.pbtxt"]
RAN = [*CONVERTED, "perf/output.log"]
WHOLE = [*RAN, "baseline/output.log"]
RESULTS = ((90, 90), (90, 80), (100, 100), (100, 80))
"""Steps with the profile (of 100 without), and the shortest one of any schedule."""


def parse(line: str) -> None:
    """As the command line does, without running anything."""
    words = shlex.split(line)
    words = words[1:] if words[0].startswith("XLA_FLAGS=") else words
    assert words[0] == "pgle", line
    command, name, rest = (
        group.get_command(click.Context(group), words[1]),
        words[1],
        words[2:],
    )
    if isinstance(command, click.Group):
        command, name, rest = (
            command.get_command(click.Context(command), rest[0]),
            rest[0],
            rest[1:],
        )
    assert command is not None, line
    command.make_context(name, rest)


def named_in(text: str) -> list[str]:
    """The commands in an answer: lines of their own, or what follows a colon."""
    return re.findall(r"^(?:  |[^\n]*?: )?((?:XLA_FLAGS=.*? )?pgle .*)$", text, re.M)


def run_directory(folder: Path, files: list[str]) -> RunDirectory:
    """One that holds these files, each younger than the one before, of a profile stage that was
    asked for `ASKED`.
    """
    for age, name in enumerate(files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
        os.utime(folder / name, (1e9 + age, 1e9 + age))
    extend_manifest(folder, StageRecord("profile", started="1", asked=ASKED))
    return RunDirectory(folder)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([], f"pgle profile --run-dir RUN {AS_IT_WAS} --mode async --force -- "),
        (PROFILED, "pgle convert RUN"),
        (["profile.pbtxt", *PROFILED], "pgle convert --force RUN"),
        (CONVERTED, f"pgle perf --run-dir RUN {AS_IT_WAS} -- "),
        (RAN, f"pgle perf --run-dir RUN {AS_IT_WAS} --baseline -- "),
        (
            [*PROFILED, "perf/output.log", "profile.pbtxt"],
            f"pgle perf --run-dir RUN {AS_IT_WAS} --force -- ",
        ),
        (WHOLE, "pgle compare RUN/baseline RUN/perf"),
    ],
)
def test_a_run_directory_goes_on_as_it_was_begun(
    files: list[str], said: str, tmp_path: Path
) -> None:
    run = run_directory(tmp_path / "a", files)
    words = shlex.join(PROGRAM) if said.endswith(" -- ") else ""
    line = str(next_command.stage_left(run))
    assert line.replace(str(run.path), "RUN") == said + words


@pytest.mark.parametrize("stage", ["baseline", "perf"])
def test_a_run_directory_that_began_with_another_stage_is_profiled_as_by_default(
    tmp_path: Path, stage: str
) -> None:
    extend_manifest(
        tmp_path, StageRecord(stage, started="1", asked={**ASKED, "mode": stage})
    )
    line = str(next_command.stage_left(RunDirectory(tmp_path)))
    assert (
        line
        == f"pgle profile --run-dir {tmp_path} {AS_IT_WAS} -- {shlex.join(PROGRAM)}"
    )
    parse(line)


@pytest.mark.parametrize("ranks", ["", " and 3 more ranks"])
def test_what_was_compared_is_looked_at(tmp_path: Path, ranks: str) -> None:
    run = run_directory(tmp_path, WHOLE)
    sides = [f"{run.path}/{name}/steps.jsonl{ranks}" for name in ("baseline", "perf")]
    found = compared("faster", False, *sides)
    assert compared_run(found) == run
    record_comparison(run, found)
    assert next_command.stage_left(run) is None


@pytest.mark.parametrize("files", [PROFILED, CONVERTED, RAN, WHOLE])
@pytest.mark.parametrize("is_compared", [False, True])
def test_a_folder_leads_on_as_every_answer_on_its_run(
    files: list[str], is_compared: bool, tmp_path: Path
) -> None:
    run = run_directory(tmp_path / "a", files)
    if is_compared:
        record_comparison(run, compared("same"))
    (tmp_path / "job.log").write_text("step 1\n")
    said = folder_page(contents_of(tmp_path)).way
    known = to_way(report.way_in_run(run))
    assert (said.next[:1], said.done, said.end) == (known.next, known.done, known.end)


def test_a_report_leads_on_as_every_answer_on_its_run(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "a", WHOLE)
    found = RunFacts((run.path,), run=run, comparison=compared("faster", True))
    assert run_page_way(found) == report.way_in_run(run)


def test_after_steps_that_did_not_change_come_flags(tmp_path: Path) -> None:
    module = f"captured/{MODULE}"
    run = run_directory(tmp_path / "a", [module, *WHOLE])
    assert report.way_in_run(run, compared("same"))[-1].name == "tune"


def test_a_run_that_holds_no_module_leads_to_nothing_that_compiles(
    tmp_path: Path,
) -> None:
    run = run_directory(tmp_path / "a", WHOLE)
    (end,) = report.way_in_run(run, compared("same"))
    assert isinstance(end, Sentence)


def test_a_run_with_too_few_steps_is_not_begun_again(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "a", WHOLE)
    (end,) = report.way_in_run(run)
    assert isinstance(end, Sentence)
    assert "run more of them" in str(end)


WITHOUT_PROFILE = (
    "I1129 00:52:19.422148 21517 se_gpu_pjrt_compiler.cc:242] Found GPU target config\n"
    "I1129 00:52:19.450992 21517 latency_hiding_scheduler.cc:4325] "
    "[latency-hiding-scheduler] LatencyHidingScheduler current memory usage: "
    "201326608 bytes. Current limit: 32111801116\n"
)


@pytest.mark.parametrize("simulated", [False, True])
def test_a_profile_that_was_not_used_is_neither_kept_nor_proved(
    tmp_path: Path, simulated: bool
) -> None:
    run = run_directory(tmp_path / "a", WHOLE)
    log = run.stage("perf").rank().log
    written = log.stat()
    log.write_text(WITHOUT_PROFILE)
    os.utime(log, ns=(written.st_atime_ns, written.st_mtime_ns))
    found = compared("faster", simulated)
    (end,) = report.way_in_run(run, found)
    assert str(end).startswith("XLA did not use the profile; ")
    use: Any = SimpleNamespace(main=SimpleNamespace(verdict="not-used"))
    record_comparison(run, found)
    assert report.after_confirmation(run.path, use) == (end,)


@pytest.mark.parametrize(
    ("begun", "follows"),
    [
        (["01-A", "02-B", "03-B", "04-A"], "tune"),
        (["01-A", "02-B", "03-B", "04-A", "05-B"], "compare"),
        (["01-A"], "compare"),
    ],
)
def test_pairs_of_runs_are_continued_and_then_not_made_again(
    tmp_path: Path, begun: list[str], follows: str
) -> None:
    run = run_directory(tmp_path / "a", [f"captured/{MODULE}", *WHOLE])
    for name in begun:
        (run.path / "abba" / name).mkdir(parents=True)
    if len(begun) > 1:
        plan = {"inside": ["baseline", "perf"], "finished": begun[:4]}
        (run.path / "abba" / "abba.json").write_text(json.dumps(plan))
    (line,) = report.way_in_run(run, compared("undecided"))
    assert isinstance(line, Next)
    assert line.name == follows
    assert "abba-2" not in str(line)


def test_a_profile_to_be_made_again_is_made_as_its_run_was_begun(
    tmp_path: Path,
) -> None:
    run = run_directory(tmp_path / "a", CONVERTED)
    (line,) = report.in_run_of(run.profile, (PROFILE,))
    assert str(line).startswith(f"pgle profile --run-dir {run.path} {AS_IT_WAS} ")
    assert report.in_run_of(tmp_path / "b.pbtxt", (PROFILE,)) == (PROFILE,)


def test_flags_that_a_search_found_are_measured_before_anything_else(
    tmp_path: Path,
) -> None:
    found = ["tuned/report.json", "tuned/flags.txt"]
    run = run_directory(tmp_path / "a", [*WHOLE, *found])
    (line,) = report.way_in_run(run, compared("same"))
    assert f"--flags-file {run.path}/tuned/flags.txt" in str(line)
    run_directory(tmp_path / "a-tuned", WHOLE)
    (line,) = report.way_in_run(run, compared("same"))
    assert "--flags-file" not in str(line)


def test_a_search_that_found_nothing_is_not_proposed_again(tmp_path: Path) -> None:
    run = run_directory(tmp_path, WHOLE)
    assert found_flags.tune(run) == Next.of("tune", run.path, "-o", run.path / "tuned")
    (run.path / "tuned").mkdir()
    (run.path / "tuned" / "report.json").touch()
    assert found_flags.tune(run) is None
    (run.path / "tuned" / "flags.txt").touch()
    assert str(found_flags.tune(run)).endswith("tuned-2")


def test_the_flags_of_the_environment_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", ASKED["XLA_FLAGS"])  # type: ignore[arg-type]
    line = str(next_command.stage_left(run_directory(tmp_path, CONVERTED)))
    assert "--flag" not in line


def compared(verdict: str, simulated: bool = False, *sources: str) -> Any:
    base, new = (
        SimpleNamespace(
            label="label",
            median_s=0.1,
            runs=[SimpleNamespace(series=SimpleNamespace(source=source))],
        )
        for source in sources or ("old.log", "new.log")
    )
    return SimpleNamespace(
        verdict=Verdict(verdict),
        simulated=simulated,
        base=base,
        new=new,
        change=0.02,
        ci=(1.01, 1.03),
    )


def after_results(run: RunDirectory) -> Iterator[Next]:
    """The last lines of every command, over a variety of results."""
    inside = [f"{run.path}/{name}/steps.jsonl" for name in ("baseline", "perf")]
    for verdict in Verdict:
        for simulated in (False, True):
            yield from report.after_comparison(compared(verdict, simulated))
            yield from report.after_comparison(compared(verdict, simulated, *inside))
    yield from report.way_in_run(run, None)
    for profile in (run.profile, Path("my profile.pb")):
        for hlo in ((), (Path("dump"), Path("b"))):
            yield from report.after_conversion(profile, hlo)
        yield from report.after_verification(profile, (Path("dump"),))
        yield from report.after_summary(profile)
    for verdict, name in (("used", ""), ("not-used", "a b.pbtxt"), ("cannot-tell", "")):
        use: Any = SimpleNamespace(
            main=SimpleNamespace(verdict=verdict, profile=name, remedy=None)
        )
        yield from report.after_confirmation(Path("a.log"), use)
        yield from report.after_confirmation(run.path / "perf", use)
    yield from report.after_entry(Path("perf/a history.jsonl"))
    yield from report.after_lint(("--xla_a=1 2",), None, clean=True)
    for folder, traces in (
        (run.path, ()),
        (run.path, (Path("a trace"),)),
        (Path("new run"), ()),
    ):
        for outcome in ("recompiled", "no-gpu", "too-few-runs"):
            request = StageRequest(
                "auto", PROGRAM, RunDirectory(folder), "baseline", flags=("--xla_a=1",)
            )
            found: Any = SimpleNamespace(
                stage=SimpleNamespace(request=request),
                outcome=outcome,
                worked=outcome == "recompiled",
                traces=traces,
            )
            yield from after_auto(found)


ACCOUNTS = (
    account(),
    account(opportunity(OpportunityKind.PROFILE, 0.02)),
    account(opportunity(OpportunityKind.FLAGS, None, most=0.2)),
)


def rehearsed(*words: str, **options: Any) -> Understood:
    given = {
        "profile": None,
        "topology": "2x1x8",
        "flags": (),
        "module": "a|b",
    }
    return understood(Rehearse(words, **{**given, **options}))


def after_compilations(run: RunDirectory, module: Path) -> Iterator[str]:
    """The advice of `rehearse` and `tune` for every kind of thing that they take, over a variety of
    results.
    """
    flags = ("--xla_a=1", "--xla_b=2 3")
    for command in (
        rehearsed(*PROGRAM), rehearsed(*PROGRAM, profile="p.pbtxt", flags=flags), rehearsed(str(module)),
        rehearsed(str(run.path), topology=None, module=None), rehearsed(str(run.path), flags=flags, target="h100"),
    ):  # fmt: skip
        for new_us, shortest_us in RESULTS:
            parts = SimpleNamespace(
                breakdown=SimpleNamespace(
                    communication_us=max(0, new_us - shortest_us), copy_us=0
                )
            )
            sides = [
                SimpleNamespace(step_us=step, shortest_us=shortest_us, timeline=parts)
                for step in (100, new_us)
            ]
            for known in ACCOUNTS:
                share = 1 - new_us / 100
                answer = Gain(share=share, low=share, high=share, idle_share=0.0)
                found = SimpleNamespace(
                    gained=SimpleNamespace(answer=answer), account=known, is_measured=False, holds=True, lower_bound_why="",
                    good=True, costs_are="estimated", tune=tune_line(command),
                    measure=measure_line(command), advise=advise_line(command), run=None,
                    request=SimpleNamespace(no_step="", failed=False),
                    baseline=SimpleNamespace(prediction=sides[0], compiled=SimpleNamespace(after_optimizations=module)),
                    profiled=SimpleNamespace(prediction=sides[1]), moves=(),
                )  # fmt: skip
                yield "\n  ".join(map(str, rehearsal.advice(found)))  # type: ignore[arg-type]
        for proof, costs_are in ((True, ""), (None, "estimated"), (None, "measured")):
            found = SimpleNamespace(proof=proof, launch=launch_of_program(command), costs_are=costs_are, verdict="no-room",
                                    account=ACCOUNTS[0], advise=None, measure=None, run=None,
                                    pgle=SimpleNamespace(prediction=sides[0]))  # fmt: skip
            yield from (f"  {line}" for line in tuning.commands(found, Path("tuned")))  # type: ignore[arg-type]


def test_every_next_step_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run, module = (
        run_directory(tmp_path / "a run", WHOLE),
        tmp_path / "captured" / MODULE,
    )
    for file in (module, run.captured / module.name, Path("tuned/flags.txt")):
        file.parent.mkdir(exist_ok=True)
        file.touch()
    answers = [*map(str, after_results(run)), *after_compilations(run, module)]
    found = list(dict.fromkeys(line for answer in answers for line in named_in(answer)))
    assert len(found) > 30
    for line in found:
        parse(line)


def literals(path: Path) -> Iterator[str]:
    """The texts in a source file except docstrings and titles of pages, with X for what is filled
    in.
    """
    tree = ast.parse(path.read_text())
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "title":
            inside.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            inside.update(node.values)
            if node not in inside:
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "X"
                    for part in node.values
                )
        elif isinstance(node, ast.Expr):
            inside.add(node.value)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node not in inside
        ):
            yield node.value


def test_every_command_in_a_message_has_the_options_it_names() -> None:
    found = {
        str(item)
        for item in vars(pgle.next).values()
        if isinstance(item, Next) and len(item.argv) > 2
    }
    named = [
        path for path in (ROOT / "pgle").rglob("*.py") if "pgle " in path.read_text()
    ]
    for path in named:
        for text in literals(path):
            for line in re.findall(r"['`](pgle [^'`]+)['`]", text) + re.findall(
                r"(?:^|[:;,] )(pgle [a-z-]+ [^;',]*)", text
            ):
                if (
                    len(line.split()) > 2
                    and line.split()[1] in COMMANDS
                    and not line.endswith("--help")
                ):
                    found.add(line)
    assert len(found) > 15
    for line in sorted(found):
        parse(line)
