"""Verdicts on logs: recorded ones of three releases, a real one of 2024, and small ones for each
rule.
"""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import pytest

from pgle.xla.log.read import collect, read_events
from pgle.xla.log.verdict import (
    Bounds,
    KnownCoverage,
    LogVerdict,
    ProfileUse,
    Remedy,
    ScheduleEvidence,
    judge,
)

LOGS = Path(__file__).parents[3] / "testdata/logs"
NEW = ("jax_0.10.2", "jax_0.12.0.1")


def of_file(path: Path, **options: object) -> LogVerdict:
    with path.open("rb") as stream:
        return judge(collect(read_events(stream)), **options)  # type: ignore[arg-type]


def of_lines(*texts: str, **options: object) -> LogVerdict:
    """The verdict on INFO lines; a text may begin with ``LEVEL@THREAD:``."""
    lines = []
    for second, text in enumerate(texts):
        level, thread, message = (
            ("I", "1", text) if "@" not in text[:3] else (text[0], text[2], text[4:])
        )
        lines.append(
            f"{level}1121 00:00:{second:02d}.000000   {thread} xla.cc:1] {message}"
        )
    data = "\n".join(lines).encode()
    return judge(collect(read_events(io.BytesIO(data))), **options)  # type: ignore[arg-type]


RECORDED = [
    ("used", ProfileUse.USED),
    ("half", ProfileUse.PARTLY_USED),
    ("option", ProfileUse.USED),
    ("directory", ProfileUse.USED),
    ("lhs_unset", ProfileUse.USED),
    ("empty", ProfileUse.USED_WITHOUT_MATCHES),
    ("wrong_fingerprint", ProfileUse.USED_WITHOUT_MATCHES),
    ("wrong_path", ProfileUse.NOT_USED),
    ("wrong_extension", ProfileUse.NOT_USED),
    ("no_profile", ProfileUse.NOT_USED),
    ("checker_error", ProfileUse.NOT_USED),
    ("unknown_flag", ProfileUse.NOT_USED),
    ("text_in_pb", ProfileUse.WRONG_FORMAT),
    ("syntax_error", ProfileUse.WRONG_FORMAT),
]


@pytest.mark.parametrize("release", NEW)
@pytest.mark.parametrize(("case", "verdict"), RECORDED)
def test_recorded_logs(release: str, case: str, verdict: ProfileUse) -> None:
    assert of_file(LOGS / release / f"{case}.log").main.verdict is verdict


def test_lhs_false_loses_the_profile_in_12_but_not_in_10() -> None:
    found = [
        of_file(LOGS / release / "lhs_false.log", whole=True).main.verdict
        for release in NEW
    ]
    assert found == [ProfileUse.USED, ProfileUse.NOT_USED]


@pytest.mark.parametrize(
    ("release", "found"), [("jax_0.10.2", 21), ("jax_0.12.0.1", 18)]
)
def test_half_a_profile_counts_found_and_missing(release: str, found: int) -> None:
    main = of_file(LOGS / release / "half.log").main
    assert (main.module, main.found, main.missing, len(main.missing_names)) == (
        "jit_train_step",
        found,
        found,
        found,
    )


FUSION = [
    "  gemm_fusion_dot.9",
    "  fusion-start",
    "  fusion-start.1",
    "  fusion-done",
    "  fusion-done.1",
    "  fusion-done.2",
]


def test_dones_are_no_instructions_and_an_asynchronous_fusion_is_one() -> None:
    """Of three asynchronous fusions one has a cost: XLA finds it twice, and misses the done of
    each.
    """
    counted = [
        "Found 7 instructions from the profile.",
        "Missing 6 instructions from the profile.",
        *FUSION,
    ]
    lines = [
        "Found profile for module jit_step, using profile guided latency estimator",
        *counted,
    ]
    prefix = "W1121 00:00:01.000000   1 profile_guided_latency_estimator.cc:9]"
    log = "".join(f"{prefix} {line}\n" for line in [*lines, LHS.format(5)])
    main = judge(collect(read_events(io.BytesIO(log.encode())))).main
    assert (main.found, main.missing) == (7, 6)
    assert (main.covered, main.wanted) == (6, 9)
    assert main.why.startswith(
        "the profile has costs for 6 of the 9 instructions, 66.7 % (asked for: 95.0 %; a log"
    )


def test_a_full_profile_misses_nothing_by_silence() -> None:
    assert of_file(LOGS / "jax_0.12.0.1/used.log").main.missing == 0


def test_the_step_is_the_main_module_among_sub_modules() -> None:
    verdict = of_file(LOGS / "jax_0.12.0.1/used.log")
    assert ([item.module for item in verdict.modules], verdict.sub_modules) == (
        ["jit_train_step"],
        16,
    )


def test_the_proof_is_a_line_of_the_log() -> None:
    path = LOGS / "jax_0.12.0.1/half.log"
    main = of_file(path).main
    assert main.line is not None
    assert path.read_text().splitlines()[main.line - 1].endswith(main.proof)


def test_the_position_of_a_syntax_error_is_told() -> None:
    assert "1:15" in of_file(LOGS / "jax_0.10.2/syntax_error.log").main.why


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        ("empty", ProfileUse.CANNOT_TELL),
        ("no_profile", ProfileUse.NOT_USED),
        ("syntax_error", ProfileUse.WRONG_FORMAT),
    ],
)
def test_a_release_without_missing_lists(case: str, verdict: ProfileUse) -> None:
    assert of_file(LOGS / f"jax_0.4.38/{case}.log").main.verdict is verdict


@pytest.mark.parametrize("release", ["jax_0.5.3", "jax_0.8.3"])
@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        ("half", ProfileUse.PARTLY_USED),
        ("empty", ProfileUse.USED_WITHOUT_MATCHES),
        ("lhs_unset", ProfileUse.USED),
        ("lhs_false", ProfileUse.USED),
        ("wrong_path", ProfileUse.NOT_USED),
        ("no_profile", ProfileUse.NOT_USED),
        ("text_in_pb", ProfileUse.WRONG_FORMAT),
    ],
)
def test_releases_between(release: str, case: str, verdict: ProfileUse) -> None:
    assert of_file(LOGS / release / f"{case}.log").main.verdict is verdict


def test_full_coverage_cannot_be_told_from_an_old_release_that_never_lists() -> None:
    main = of_file(LOGS / "jax_0.5.3/used.log").main
    assert (main.verdict, "before jax 0.5.1 that proves nothing" in main.why) == (
        ProfileUse.CANNOT_TELL,
        True,
    )


@pytest.mark.parametrize(
    ("release", "verdict"),
    [((0, 5, 0), ProfileUse.CANNOT_TELL), ((0, 5, 3), ProfileUse.USED)],
)
def test_the_release_settles_it(release: tuple[int, ...], verdict: ProfileUse) -> None:
    assert of_file(LOGS / "jax_0.5.3/used.log", release=release).main.verdict is verdict


def test_the_clone_of_a_step_is_not_taken_for_the_step() -> None:
    main = of_file(LOGS / "jax_0.8.3/directory.log").main
    assert (main.module, main.verdict) == ("jit_train_step", ProfileUse.USED)


MAXTEXT = Path(__file__).parents[3] / "testdata/maxtext_pgle/llama2_7b_pgle_run.log"


def test_a_real_run_of_2024_lists_no_missing_instructions_and_cannot_be_told() -> None:
    verdict = of_file(MAXTEXT)
    assert (verdict.main.module, verdict.main.line) == ("jit_train_step", 47)
    assert {item.verdict for item in verdict.modules} == {ProfileUse.CANNOT_TELL}
    assert str(verdict.main.remedy) == str(Remedy.OLD_XLA).replace(
        "PROFILE", "profile.pbtxt"
    )
    assert verdict.reads == {"profile.pbtxt": 17}


FOUND = "Found profile for module {}, using profile guided latency estimator"
LHS = "[latency-hiding-scheduler] LatencyHidingScheduler current memory usage: {} bytes. Current limit: 9"


def test_the_main_module_has_the_most_scheduler_memory() -> None:
    found = of_lines(
        FOUND.format("jit_big"),
        LHS.format(900),
        FOUND.format("jit_small"),
        LHS.format(20),
    )
    assert found.main.module == "jit_big"


def test_a_regular_expression_chooses_the_main_module() -> None:
    lines = (
        FOUND.format("jit_big"),
        LHS.format(900),
        FOUND.format("jit_small"),
        LHS.format(20),
    )
    assert of_lines(*lines, module="small").main.module == "jit_small"


def test_no_module_of_that_name() -> None:
    main = of_lines(FOUND.format("jit_step"), LHS.format(9), module="train").main
    assert (main.verdict, main.remedy) == (ProfileUse.CANNOT_TELL, Remedy.MODULE)


def test_threads_are_told_apart() -> None:
    found = of_lines(
        "I@1:" + FOUND.format("jit_a"),
        "I@2:" + FOUND.format("jit_b"),
        "W@1:Found 3 instructions from the profile.",
        "W@2:Found 0 instructions from the profile.",
        "W@1:Missing 1 instructions from the profile.",
        "W@2:Missing 7 instructions from the profile.",
    )
    assert {item.module: (item.found, item.missing) for item in found.modules} == {
        "jit_a": (3, 1),
        "jit_b": (0, 7),
    }


def test_the_last_compilation_of_a_module_counts() -> None:
    # AutoPGLE compiles a step twice: without a profile, then with one
    found = of_lines(
        f"Fingerprint before LHS for module jit_step(1) = {'0' * 32}",
        LHS.format(5),
        f"Fingerprint before LHS for module jit_step(2) = {'0' * 32}",
        "Using PGLE profile from fdo_profile (binary)",
        FOUND.format("jit_step"),
        LHS.format(5),
    )
    assert (found.main.verdict, found.main.times) == (ProfileUse.USED, 2)


def test_one_rank_without_the_profile_is_seen() -> None:
    good = f"I1121 00:00:01.0 1 x.cc:1] {FOUND.format('jit_step')}"
    bad = f"I1121 00:00:01.0 1 x.cc:1] Fingerprint before LHS for module jit_step(1) = {'0' * 32}"
    ran = f"I1121 00:00:02.0 1 x.cc:1] {LHS.format(5)}"
    text = "\n".join([f"0: {good}", f"0: {ran}", f"1: {bad}", f"1: {ran}"])
    main = judge(collect(read_events(io.BytesIO(text.encode())))).main
    assert (main.verdict, main.ranks) == (ProfileUse.NOT_USED, ("1",))
    assert main.why.startswith("on 1 of 2 ranks (1): ")


ALL = sorted(LOGS.glob("*/*.log"))
SURE = (
    ProfileUse.USED,
    ProfileUse.USED_WITHOUT_MATCHES,
    ProfileUse.NOT_USED,
    ProfileUse.WRONG_FORMAT,
)


def claims(lines: list[bytes]) -> tuple[ProfileUse, bool, bool]:
    """What a log lets us claim: use or not, that nothing is missing, that all that want a cost have
    one.
    """
    main = judge(collect(read_events(io.BytesIO(b"".join(lines))))).main
    return (
        main.verdict,
        main.missing == 0,
        main.wanted is not None and main.covered == main.wanted,
    )


def too_strong(whole: tuple[ProfileUse, bool, bool], part: list[bytes]) -> bool:
    verdict, nothing_missing, all_covered = claims(part)
    other = verdict in SURE and verdict is not whole[0]
    return other or (nothing_missing and not whole[1]) or (all_covered and not whole[2])


@pytest.mark.parametrize(
    "log", [*ALL, MAXTEXT], ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_a_log_cut_at_its_end_claims_no_more_than_the_whole(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    whole = claims(lines)
    assert [end for end in range(len(lines)) if too_strong(whole, lines[:end])] == []


@pytest.mark.parametrize("log", ALL, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_log_cut_at_its_beginning_claims_no_more_than_the_whole(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    whole = claims(lines)
    assert [
        start for start in range(len(lines)) if too_strong(whole, lines[start:])
    ] == []


def test_a_log_that_ends_as_the_compilation_begins_cannot_tell() -> None:
    main = of_lines(
        "Found GPU target config and no PjRtClient. Performing a deviceless compilation."
    ).main
    assert (main.verdict, main.remedy) == (
        ProfileUse.CANNOT_TELL,
        Remedy.WHOLE_OR_SILENT,
    )


def test_the_profile_alone_does_not_say_that_every_instruction_has_a_cost() -> None:
    main = of_lines(FOUND.format("jit_step")).main
    assert (main.verdict, main.missing) == (ProfileUse.CANNOT_TELL, None)


def test_a_program_that_ended_well_has_said_all() -> None:
    main = of_lines(FOUND.format("jit_step"), whole=True).main
    assert (main.verdict, main.missing) == (ProfileUse.USED, 0)


PREFIXES = [
    "{}: ",
    "[1,{}]<stderr>:",
    "[rank{}] ",
    "[rank{}]:",
    "[pod/worker-{}/main] ",
    "worker-{} main ",
    "node{}: ",
]
UNLIKE = ["no_profile", "wrong_extension", "wrong_path", "text_in_pb"]


def of_ranks(*logs: Path, prefix: str, interleaved: bool) -> LogVerdict:
    """The verdict on the logs of several ranks in one, one after the other or line by line."""
    ranks = [
        [
            prefix.format(rank).encode() + line
            for line in log.read_bytes().splitlines(keepends=True)
        ]
        for rank, log in enumerate(logs)
    ]
    mixed = [line for lines in zip_longest(*ranks, fillvalue=b"") for line in lines]
    lines = mixed if interleaved else [line for rank in ranks for line in rank]
    return judge(collect(read_events(io.BytesIO(b"".join(lines)))))


@pytest.mark.parametrize(
    "interleaved", [False, True], ids=["one after the other", "line by line"]
)
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("case", UNLIKE)
@pytest.mark.parametrize("release", NEW)
def test_a_rank_that_differs_is_named(
    release: str, case: str, prefix: str, interleaved: bool
) -> None:
    used, other = LOGS / release / "used.log", LOGS / release / f"{case}.log"
    verdict = of_ranks(used, used, other, used, prefix=prefix, interleaved=interleaved)
    assert verdict.main.verdict is of_file(other).main.verdict
    assert (verdict.main.ranks, verdict.main.module) == (
        (list(verdict.ranks)[2],),
        "jit_train_step",
    )
    assert sorted(verdict.ranks.values()) == sorted(
        [ProfileUse.USED] * 3 + [verdict.main.verdict]
    )
    assert "deadlock" in str(verdict.main.remedy)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_rank_of_which_nothing_is_known_leaves_it_open(prefix: str) -> None:
    folder = LOGS / "jax_0.12.0.1"
    verdict = of_ranks(
        folder / "used.log", folder / "lhs_false.log", prefix=prefix, interleaved=True
    )
    assert verdict.main.verdict is ProfileUse.CANNOT_TELL


@pytest.mark.parametrize("prefix", [*PREFIXES, ""])
@pytest.mark.parametrize("release", ["jax_0.8.3", *NEW])
def test_ranks_that_all_use_the_profile(release: str, prefix: str) -> None:
    used = LOGS / release / "used.log"
    assert (
        of_ranks(used, used, used, prefix=prefix, interleaved=bool(prefix)).main.verdict
        is ProfileUse.USED
    )


@pytest.mark.parametrize(
    "interleaved", [False, True], ids=["one after the other", "line by line"]
)
@pytest.mark.parametrize("case", UNLIKE)
@pytest.mark.parametrize("release", NEW)
def test_processes_without_labels_that_contradict_each_other(
    release: str, case: str, interleaved: bool
) -> None:
    used, other = LOGS / release / "used.log", LOGS / release / f"{case}.log"
    for logs in ((used, other), (other, used)):
        main = of_ranks(*logs, prefix="", interleaved=interleaved).main
        assert main.verdict is of_file(other).main.verdict
        assert "several processes, or several runs, write this log" in main.why


@pytest.mark.parametrize("case", ["no_profile", "wrong_path", "text_in_pb"])
def test_processes_of_an_old_release_without_labels(case: str) -> None:
    folder = LOGS / "jax_0.5.3"
    main = of_ranks(
        folder / "half.log", folder / f"{case}.log", prefix="", interleaved=False
    ).main
    assert main.verdict in (ProfileUse.NOT_USED, ProfileUse.WRONG_FORMAT)


def test_a_refused_flag_beside_a_used_profile() -> None:
    folder = LOGS / "jax_0.12.0.1"
    main = of_ranks(
        folder / "used.log", folder / "unknown_flag.log", prefix="", interleaved=False
    ).main
    assert (main.verdict, str(Remedy.FLAG) in str(main.remedy)) == (
        ProfileUse.NOT_USED,
        True,
    )


def test_a_schedule_dump_does_not_clear_another_rank() -> None:
    folder = LOGS / "jax_0.12.0.1"
    log = b"".join(
        b"0: " + line
        for line in (folder / "used.log").read_bytes().splitlines(keepends=True)
    )
    log += b"".join(
        b"1: " + line
        for line in (folder / "no_profile.log").read_bytes().splitlines(keepends=True)
    )
    proof = ScheduleEvidence("jit_train_step", 30, 30, 40, "jit_train_step.schedule.pb")
    assert (
        judge(collect(read_events(io.BytesIO(log))), schedule=proof).main.verdict
        is ProfileUse.NOT_USED
    )


@pytest.mark.parametrize(
    "line",
    [
        "Addressable PjRt-IFRT device: CpuDevice(id=0)",
        "TfrtCpuClient created.",
        "A CUDA-enabled jaxlib is not installed. Falling back to cpu.",
    ],
)
def test_a_job_on_cpu_devices(line: str) -> None:
    main = of_lines(
        "GetPjrtApi was found for cuda",
        line,
        "HloModule dump enabled with path prefix: ",
    ).main
    assert (main.verdict, main.remedy, "CPU devices" in main.why) == (
        ProfileUse.CANNOT_TELL,
        Remedy.CPU,
        True,
    )


def test_only_warnings_still_prove_use() -> None:
    source = "W1121 00:00:01.0 1 profile_guided_latency_estimator.cc:9]"
    listed = [
        "Found 3 instructions from the profile.",
        "Missing 1 instructions from the profile.",
        "  fusion.1",
    ]
    main = judge(
        collect(
            read_events(
                io.BytesIO("".join(f"{source} {line}\n" for line in listed).encode())
            )
        )
    ).main
    assert (main.verdict, main.module) == (ProfileUse.PARTLY_USED, "")


def test_a_log_without_info_lines_tells_nothing() -> None:
    main = of_lines("W@1:something else").main
    assert (main.verdict, main.remedy) == (ProfileUse.CANNOT_TELL, Remedy.LEVEL)


def test_an_empty_log_tells_nothing() -> None:
    assert of_lines().main.verdict is ProfileUse.CANNOT_TELL


def test_a_cached_executable_tells_nothing() -> None:
    line = b"DEBUG:jax:Persistent compilation cache hit for 'jit_step' with key 1"
    main = judge(collect(read_events(io.BytesIO(line)))).main
    assert (main.verdict, main.module, main.remedy) == (
        ProfileUse.CANNOT_TELL,
        "jit_step",
        Remedy.CACHE,
    )


def test_the_speed_of_light_model_is_no_profile() -> None:
    main = of_lines(
        "Using Speed-of-Light (SoL) analytical latency estimator", LHS.format(5)
    ).main
    assert (main.verdict, "Speed-of-Light" in main.why) == (ProfileUse.NOT_USED, True)


@pytest.mark.parametrize(
    "line",
    [
        "jaxlib.XlaRuntimeError: INVALID_ARGUMENT: Found 1 missing instructions. Discarding the profile.",
        "JaxRuntimeError: FAILED_PRECONDITION: Expected instruction name to remain the same. Was 'a.3' is 'b.13'",
    ],
)
def test_the_checker_in_a_traceback(line: str) -> None:
    text = f"I1121 00:00:01.0 1 x.cc:1] {FOUND.format('jit_step')}\n{line}\n"
    main = judge(collect(read_events(io.BytesIO(text.encode())))).main
    assert (main.module, main.verdict, main.remedy) == (
        "jit_step",
        ProfileUse.NOT_USED,
        Remedy.CHECKER,
    )


def test_an_empty_trace_of_autopgle_is_a_warning() -> None:
    line = b"RuntimeWarning: PGLE collected an empty trace, may be due to contention with another tool"
    assert (
        "AutoPGLE recorded nothing"
        in judge(collect(read_events(io.BytesIO(line)))).warnings[0]
    )


def test_clones_are_left_out() -> None:
    found = of_lines(
        FOUND.format("jit_step-clone"), FOUND.format("jit_step"), LHS.format(1)
    )
    assert [item.module for item in found.modules] == ["jit_step"]


def test_jax_names_a_module_that_old_xla_does_not() -> None:
    found = of_lines(
        "Using PGLE profile from p.pb",
        "Found profile, using profile guided latency estimator",
        "Writing jit_step to persistent compilation cache with key 1",
    )
    assert found.main.module == "jit_step"


def evidence(compared: int, equal: int) -> ScheduleEvidence:
    return ScheduleEvidence("jit_step", compared, equal, 40, "jit_step.schedule.pb")


def test_a_schedule_proves_use_where_the_log_is_silent() -> None:
    main = of_lines("W@1:nothing", schedule=evidence(30, 30)).main
    assert (main.module, main.verdict) == ("jit_step", ProfileUse.USED)


def test_a_schedule_with_other_costs_disproves_use() -> None:
    main = of_lines(
        "Found profile, using profile guided latency estimator",
        schedule=evidence(30, 0),
    ).main
    assert (main.verdict, main.remedy) == (ProfileUse.NOT_USED, Remedy.NOT_GIVEN)


def test_a_schedule_without_common_names_proves_nothing() -> None:
    main = of_lines("W@1:nothing", schedule=evidence(0, 0)).main
    assert (main.verdict, main.remedy) == (
        ProfileUse.CANNOT_TELL,
        Remedy.NO_NAMES.filled({"DUMP": "."}),
    )


def covering(
    covered: int, wanted: int, *, time: float, kept: float = 1.0, mismatched: int = 0
) -> ScheduleEvidence:
    """A dump that agrees with a profile, which covers so much of the module."""
    known = KnownCoverage(
        covered=covered,
        wanted=wanted,
        time_coverage=time,
        kept_share=kept,
        mismatched=mismatched,
    )
    return replace(evidence(8, 8), coverage=known)


def test_a_schedule_tells_how_much_of_the_step_the_profile_covers() -> None:
    """That decides, not the number of instructions: the log counts 8 of 26, the dump half of the
    step's time.
    """
    counted = [
        "W@1:Found 8 instructions from the profile.",
        "W@1:Missing 18 instructions from the profile.",
    ]
    lines = [FOUND.format("jit_step"), *counted, LHS.format(5)]
    proof = covering(8, 26, time=0.48)
    assert of_lines(*lines).main.verdict is ProfileUse.PARTLY_USED
    main = of_lines(*lines, schedule=proof).main
    assert (main.verdict, main.time_coverage) == (ProfileUse.PARTLY_USED, 0.48)
    assert main.why.startswith(
        "the profile has costs for 8 of the 26 instructions, 48.0 % of the step's time as XLA plans it"
    )
    assert (
        of_lines(*lines, schedule=proof, bounds=Bounds(0.4)).main.verdict
        is ProfileUse.USED
    )
    assert str(main.remedy).startswith("this profile was made by another program")
    main = of_lines(*lines, schedule=covering(8, 26, time=0.97)).main
    assert (main.verdict, str(main.remedy).partition(" with ")[0]) == (
        ProfileUse.USED,
        "see what is missing",
    )


def test_collectives_without_a_cost_make_a_profile_partly_used() -> None:
    proof = covering(25, 26, time=0.97, kept=0.9)
    main = of_lines(FOUND.format("jit_step"), LHS.format(5), schedule=proof).main
    assert (
        main.verdict,
        "collectives without a cost weigh 10.0 % of the step" in main.why,
    ) == (
        ProfileUse.PARTLY_USED,
        True,
    )


def test_costs_of_another_program_under_the_same_names_are_said() -> None:
    proof = covering(1, 42, time=0.0, kept=0.0, mismatched=21)
    main = of_lines(FOUND.format("jit_step"), LHS.format(5), schedule=proof).main
    assert main.verdict is ProfileUse.PARTLY_USED
    assert "21 got the cost of another opcode or shape of that name" in main.why
    assert str(main.remedy).startswith("this profile was made by another program")


def test_a_remedy_names_the_profile_and_the_dump() -> None:
    lines = [
        "Using PGLE profile from my runs/p.pbtxt",
        FOUND.format("jit_step"),
        LHS.format(5),
    ]
    proof = replace(covering(30, 40, time=0.9), source="d/jit_step.schedule.pb")
    assert "`pgle verify 'my runs/p.pbtxt' --hlo d`" in str(
        of_lines(*lines, schedule=proof).main.remedy
    )
