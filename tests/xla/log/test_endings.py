"""How a program ended, by the last lines of its log, and what that makes of the verdict."""

from __future__ import annotations

import io

import pytest

from pgle.xla.log.read import collect, read_events
from pgle.xla.log.verdict import LogVerdict, ProfileUse, judge

USED = """\
I1121 00:00:01.000000   1 gpu_hlo_schedule.cc:377] Using PGLE profile from p.pbtxt
I1121 00:00:01.000000   1 gpu_hlo_schedule.cc:522] Found profile for module jit_step, using profile \
guided latency estimator
I1121 00:00:01.000000   1 latency_hiding_scheduler.cc:1] [latency-hiding-scheduler] \
LatencyHidingScheduler current memory usage: 5 bytes. Current limit: 9
step 1: loss 2.0
"""
TRACEBACK = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step(1)
ValueError: no
"""


def verdict(text: str, **options: object) -> LogVerdict:
    return judge(collect(read_events(io.BytesIO(text.encode()))), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "F1121 00:00:02.000000   7 gpu_hlo_schedule.cc:475] Check failed: a <= b",
            "XLA ended",
        ),
        (
            "2024-11-21 00:00:02.000000: F external/xla/a.cc:4] Check failed: a",
            "XLA ended",
        ),
        ("*** Check failure stack trace: ***", "a check failed"),
        ("Fatal Python error: Segmentation fault", "Python crashed"),
        ("Fatal Python error: Aborted", "Python crashed"),
        (
            "*** SIGABRT received by PID 7 (TID 7) on cpu 3 from PID 7; stack trace: ***",
            "a signal",
        ),
        ("*** SIGSEGV (@0x0) received at time=1700000000 on cpu 3 ***", "a signal"),
        ("Segmentation fault (core dumped)", "a signal"),
        ("run.sh: line 3: 12345 Killed                  python train.py", "a signal"),
        ("Killed", "a signal"),
        ("Bus error (core dumped)", "a signal"),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "an exception of C++",
        ),
        ("free(): invalid pointer", "its heap"),
        ("corrupted size vs. prev_size", "its heap"),
        (
            "[1.0] Out of memory: Killed process 7 (python) total-vm:1kB",
            "the host ran out",
        ),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,task=python", "the host ran out"),
        (
            "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",
            "the host ran out",
        ),
        ("    Reason:       OOMKilled", "the host ran out"),
        (
            "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***",
            "the job reached its time limit",
        ),
        (
            "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2024-01-01T00:00:00 ***",
            "the job was cancelled",
        ),
        ("srun: error: n1: task 3: Bus error", "Slurm saw a task fail"),
        (
            "srun: error: n1: tasks 0-3: Exited with exit code 1",
            "Slurm saw a task fail",
        ),
        (
            "mpirun noticed that process rank 3 with PID 7 on node n1 exited on signal 9 (Killed).",
            "mpirun saw a process fail",
        ),
        ("command terminated with exit code 137", "Kubernetes"),
        (
            "=>> PBS: job killed: walltime 3612 exceeded limit 3600",
            "the job reached its time limit",
        ),
        (
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.",
            "the job reached its",
        ),
        (
            "E1121 00:00:02.0 7 rendezvous.cc:57] Termination timeout for `x` of 40 seconds exceeded. Exiting",
            "a rank waited too long",
        ),
        (
            "E0000 00:00:1754000000.000000  100 rendezvous.cc:57] Termination timeout for `x` of 40 "
            "seconds exceeded. Exiting to ensure a consistent program state.",
            "a rank waited too long",
        ),
        (
            "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=6)",
            "a collective timed out",
        ),
        (TRACEBACK.rstrip(), "a Python exception"),
    ],
)
def test_an_early_end_counts(line: str, cause: str) -> None:
    main = verdict(f"{USED}{line}\n").main
    assert (main.verdict, main.line) == (ProfileUse.ENDED, 4 + len(line.splitlines()))
    assert cause in main.why


@pytest.mark.parametrize(
    "line",
    [
        "killed 3 stale data workers",
        "saved checkpoint: Killed",
        "srun: error: n1: task 3: Exited with exit code 0",
        "step 12: room for malloc",
        "early stopping aborted: no",
        "E1121 00:00:02.0 7 a.cc:1] the autotuner ran out of memory; it tries another",
    ],
)
def test_lines_that_are_no_end(line: str) -> None:
    assert verdict(f"{USED}{line}\n").main.verdict is ProfileUse.USED


def test_an_exception_before_a_later_step_was_caught() -> None:
    found = verdict(f"{USED}{TRACEBACK}step 2: loss 1.9\n")
    assert found.main.verdict is ProfileUse.USED
    assert (
        "line 8: a Python exception, after which the program continued"
        in found.warnings[0]
    )


def test_an_exception_that_python_drops_at_its_end_is_no_end() -> None:
    text = f"{USED}Exception ignored in: <function f>\n{TRACEBACK}"
    assert verdict(text).main.verdict is ProfileUse.USED


def test_an_end_before_the_scheduler_took_the_profile_cannot_tell() -> None:
    read = USED.splitlines()[0]
    main = verdict(
        f"{read}\nF1121 00:00:02.0 1 latency_hiding_scheduler.cc:1] Check failed\n"
    ).main
    assert (main.verdict, main.line) == (ProfileUse.CANNOT_TELL, 2)
    assert main.why.startswith("the program ended at line 2: XLA ended the process")


def labelled(rank: int, text: str) -> str:
    return "".join(f"{rank}: {line}\n" for line in text.splitlines())


def four_ranks() -> str:
    return "".join(labelled(rank, USED) for rank in range(4))


@pytest.mark.parametrize(
    "end",
    [
        "2: F1121 00:00:02.0 1 a.cc:1] Check failed",
        "2: Killed",
        "srun: error: n1: task 2: Out Of Memory",
        "mpirun noticed that process rank 2 with PID 7 on node n1 exited on signal 9 (Killed).",
    ],
)
def test_one_rank_of_four_ended(end: str) -> None:
    found = verdict(f"{four_ranks()}{end}\n")
    assert found.main.verdict is ProfileUse.ENDED
    assert found.ranks == {
        "0": ProfileUse.USED,
        "1": ProfileUse.USED,
        "2": ProfileUse.ENDED,
        "3": ProfileUse.USED,
    }


def test_a_time_limit_ends_every_rank() -> None:
    limit = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO TIME LIMIT ***"
    found = verdict(f"{four_ranks()}{limit}\n")
    assert set(found.ranks.values()) == {ProfileUse.ENDED}


def test_a_rank_that_left_no_other_line_is_a_rank() -> None:
    found = verdict(f"{four_ranks()}srun: error: n1: task 7: Killed\n")
    assert found.ranks["7"] is ProfileUse.CANNOT_TELL
    assert found.main.verdict is ProfileUse.CANNOT_TELL


def test_a_log_cut_before_its_end_claims_use_and_no_more() -> None:
    lines = f"{USED}Killed\n".splitlines(keepends=True)
    uses = [
        verdict("".join(lines[:end])).main.verdict for end in range(1, len(lines) + 1)
    ]
    assert uses[-3:] == [ProfileUse.USED, ProfileUse.USED, ProfileUse.ENDED]
    assert set(uses[:-3]) == {ProfileUse.CANNOT_TELL}


def test_waiting_for_other_ranks_is_mentioned_until_it_is_over() -> None:
    stuck = (
        "E1121 00:00:02.0 1 rendezvous.cc:31] [id=3] This thread has been waiting for `acquire` "
        "for 10 seconds and may be stuck. Expected 8 threads\n"
    )
    over = "E1121 00:00:09.0 1 rendezvous.cc:40] [id=3] This thread is unstuck waiting for `acquire`\n"
    assert "line 5: a thread waits for other ranks" in verdict(USED + stuck).warnings[0]
    assert verdict(USED + stuck + over).warnings == ()


def test_ranks_with_two_profiles_are_a_failure() -> None:
    text = labelled(0, USED) + labelled(1, USED.replace("p.pbtxt", "q.pbtxt"))
    found = verdict(text)
    assert found.main.verdict is ProfileUse.DIFFERENT
    assert (
        found.main.why
        == "the ranks read different profiles: p.pbtxt on 0, q.pbtxt on 1"
    )


def test_the_same_profile_under_two_names_is_one_profile() -> None:
    text = labelled(0, USED) + labelled(1, USED.replace("p.pbtxt", "q.pbtxt"))
    assert verdict(text, alike={"q.pbtxt": "p.pbtxt"}).main.verdict is ProfileUse.USED


MISSED = (
    "W1121 05:00:01.0 1 compiler.py:560] PERSISTENT CACHE MISS for PGLE-optimized {} despite non-PGLE "
    "hit; it may not have been executed enough times when the cache was populated\n"
)
LOADED = "INFO:jax._src.compiler:PGLE-optimized {} loaded from compilation cache\n"
WRITTEN = (
    "/x/jax/_src/compilation_cache.py:287: UserWarning: PERSISTENT CACHE WRITE with key "
    "jit_step-0a1b2c3d4e5f60718293a4b5c6d7e8f9, this is unexpected because "
    "JAX_COMPILATION_CACHE_EXPECT_PGLE is set.\n"
)
GIVEN = "DEBUG:jax._src.compiler:Compiling module {} with FDO profile of length 812\n"


@pytest.mark.parametrize(
    ("text", "use"),
    [
        (MISSED.format("jit_init") + MISSED.format("jit_step"), ProfileUse.NOT_USED),
        (LOADED.format("jit_step"), ProfileUse.USED),
        (MISSED.format("jit_init") + LOADED.format("jit_step"), ProfileUse.USED),
        (WRITTEN, ProfileUse.NOT_USED),
        (GIVEN.format("jit_step"), ProfileUse.CANNOT_TELL),
        (LOADED.format("jit_step") + "Killed\n", ProfileUse.ENDED),
    ],
)
def test_what_jax_says_about_the_executables_of_autopgle(
    text: str, use: ProfileUse
) -> None:
    main = verdict(text).main
    assert (main.module, main.verdict) == ("jit_step", use)


def test_a_rank_without_the_optimized_executable_is_named() -> None:
    found = verdict(f"0: {LOADED.format('jit_step')}1: {MISSED.format('jit_step')}")
    assert found.ranks == {"0": ProfileUse.USED, "1": ProfileUse.NOT_USED}
