"""XLA's log as events: every wording, both prefixes, streams, interleaving."""

from __future__ import annotations

import io
import tracemalloc

import pytest

from pgle.xla.log.read import (
    MAX_LINE_BYTES,
    Event,
    LineKind,
    is_sub_module,
    read_events,
)

ABSEIL = "I1121 00:39:04.533721   29479 gpu_hlo_schedule.cc:392] "
TSL = "2026-11-21 01:04:15.660721: I external/xla/xla/service/gpu/gpu_hlo_schedule.cc:393] "


def events(*lines: str) -> list[Event]:
    """The events of a log, without the note that INFO lines are there."""
    found = read_events(io.BytesIO("\n".join(lines).encode()))
    return [event for event in found if event.kind is not LineKind.INFO]


WORDINGS = [
    # (text, kind, module, subject, count); releases as in the proto's history, oldest wording last
    ("Using PGLE profile from /a b/x.pbtxt", LineKind.READ, "", "/a b/x.pbtxt", None),
    ("Using PGLE profile from fdo_profile (binary)", LineKind.READ, "", "fdo_profile (binary)", None),
    ("Using PGLE profile for module from fdo_profile (text)", LineKind.READ, "", "fdo_profile (text)", None),
    (
        "Found profile for module jit_step, using profile guided latency estimator",
        LineKind.FOUND_PROFILE, "jit_step", "", None,
    ),
    ("Found profile, using profile guided latency estimator", LineKind.FOUND_PROFILE, "", "", None),
    ("Found profile, using profile guided latency estimator. Profile:", LineKind.FOUND_PROFILE, "", "", None),
    ("Found 33 instructions from the profile.", LineKind.FOUND, "", "", 33),
    ("Missing 1 instructions from the profile.", LineKind.MISSING, "", "", 1),
    ("PGLE profile file does not exist: /p/x.pb", LineKind.NO_SUCH_FILE, "", "/p/x.pb", None),
    (
        "Tried but failed to parse PGLE proto from text file 'p'. Error message: Can't parse p as text proto",
        LineKind.UNREADABLE, "", "'p'. Error message: Can't parse p as text proto", None,
    ),
    ("Unable to read PGLE text proto from p: bytes", LineKind.UNREADABLE, "", "p: bytes", None),
    (
        "Unable to prase FDO profile: not a valid text or binary ProfiledInstructionsProto",
        LineKind.UNREADABLE, "", ": not a valid text or binary ProfiledInstructionsProto", None,
    ),
    (
        "Profile data detected but `xla_gpu_enable_latency_hiding_scheduler` unset. To use it",
        LineKind.LHS_OFF_NOTICE, "", "", None,
    ),
    (
        "[latency-hiding-scheduler] LatencyHidingScheduler current memory usage: 12 bytes. Current limit: 9",
        LineKind.LHS_RAN, "", "", 12,
    ),
    ("LatencyHidingScheduler current memory usage: 12 bytes. Current limit: 9", LineKind.LHS_RAN, "", "", 12),
    ("Using unified latency estimator", LineKind.OTHER_ESTIMATOR, "", "unified", None),
    (
        "Using Speed-of-Light (SoL) analytical latency estimator",
        LineKind.OTHER_ESTIMATOR, "", "Speed-of-Light (SoL) analytical", None,
    ),
    (
        f"Fingerprint before LHS for module jit_step(12) = {'0a' * 16}",
        LineKind.FINGERPRINT, "jit_step", "0a" * 16, None,
    ),
    ("PGLE found cost for: fusion.3", LineKind.COST_FOUND, "", "fusion.3", None),
    (
        "PGLE found latency for async op all-gather-start and (assumed)all-gather-done in instruction costs",
        LineKind.COST_FOUND, "", "all-gather-start", None,
    ),
    ("Unknown flags in XLA_FLAGS: --a=1 --b ", LineKind.FLAG_REFUSED, "", "--a=1 --b", None),
    (
        "Couldn't interpret value maybe for flag xla_gpu_x.",
        LineKind.FLAG_REFUSED, "", "maybe for flag xla_gpu_x", None,
    ),
]  # fmt: skip


@pytest.mark.parametrize("prefix", [ABSEIL, TSL], ids=["abseil", "tsl"])
@pytest.mark.parametrize(("text", "kind", "module", "subject", "count"), WORDINGS)
def test_wording(
    prefix: str, text: str, kind: LineKind, module: str, subject: str, count: int | None
) -> None:
    (event,) = events(prefix + text)
    assert (event.kind, event.module, event.subject, event.count) == (
        kind,
        module,
        subject,
        count,
    )


def test_prefix_gives_level_thread_and_time() -> None:
    (event,) = events(ABSEIL + "Using PGLE profile from x.pb")
    assert (event.level, event.thread, event.seconds) == (
        "I",
        "29479",
        pytest.approx(39 * 60 + 4.533721),
    )


def test_tsl_prefix_has_no_thread() -> None:
    assert events(TSL + "Using PGLE profile from x.pb")[0].thread == ""


LABELS = [
    ("0: ", "0"),  # srun --label
    ("  12: ", "12"),
    ("[1,0]<stdout>:", "1,0"),  # mpirun --tag-output
    ("[1,0]<stderr>: ", "1,0"),
    ("[prterun-node1-77@1,3]<stderr>: ", "1,3"),
    ("[rank0]:", "rank0"),  # torchrun
    ("[rank1] ", "rank1"),
    ("[3] ", "3"),  # mpiexec -l
    ("[pod/worker-0/main] ", "pod/worker-0/main"),  # kubectl logs --prefix
    (
        "[pod/worker-0/main] 2026-11-21T00:39:04.533721123Z ",
        "pod/worker-0/main",
    ),  # with --timestamps
    ("2026-11-21T00:39:04Z 7: ", "7"),
    ("(train pid=4711, ip=10.0.0.3) ", "train pid=4711, ip=10.0.0.3"),  # Ray
    ("node12: ", "node12"),  # clush
    ("\x1b[36mtrain-0  | \x1b[0m", "train-0"),  # docker compose
    ("train-workers-0-3-x7f2q main ", "train-workers-0-3-x7f2q main"),  # stern
    ("2026-11-21T00:39:04.5Z ", ""),  # timestamps alone
    (" 12%|###   | 1/8 [00:01<00:07] ", ""),  # a progress bar that is no label
]


@pytest.mark.parametrize(("label", "rank"), LABELS)
def test_labels_of_ranks_before_the_prefix(label: str, rank: str) -> None:
    (event,) = events(label + ABSEIL + "Using PGLE profile from x.pb\x1b[0m")
    assert (event.kind, event.subject, event.rank) == (LineKind.READ, "x.pb", rank)


@pytest.mark.parametrize(("label", "rank"), [item for item in LABELS if item[1]])
def test_labels_before_lines_of_python(label: str, rank: str) -> None:
    said = "RuntimeWarning: PGLE collected an empty trace"
    (_, event) = events(label + ABSEIL + "Using PGLE profile from x.pb", label + said)
    assert (event.kind, event.rank) == (LineKind.EMPTY_TRACE, rank)


def test_the_name_of_a_warning_is_no_rank() -> None:
    (event,) = events("RuntimeWarning: PGLE collected an empty trace")
    assert event.rank == ""


def test_the_first_info_line_of_each_rank_is_an_event() -> None:
    lines = [f"{rank}: {ABSEIL}{text}" for text in ("one", "two") for rank in (0, 1)]
    found = [
        event
        for event in read_events(io.BytesIO("\n".join(lines).encode()))
        if event.kind is LineKind.INFO
    ]
    assert [(event.rank, event.line) for event in found] == [("0", 1), ("1", 2)]


def test_missing_names_are_told_by_their_source_file() -> None:
    listed = (
        "W1121 00:39:04.5 1 profile_guided_latency_estimator.cc:197]   all-gather-start"
    )
    other = "W1121 00:39:04.5 1 rematerialization.cc:197]   all-gather-start profile"
    assert [event.kind for event in events(listed, other)] == [LineKind.MISSING_NAME]


def test_parser_position_of_a_text_profile() -> None:
    text = "Error parsing text-format tensorflow.profiler.ProfiledInstructionsProto: 1:15: Expected string, got: "
    old = f"[libprotobuf ERROR external/text_format.cc:337] {text}"
    new = f"E1121 00:39:04.5 1 text_format.cc:457] {text}"
    assert [event.subject for event in events(old, new)] == [
        "1:15: Expected string, got: "
    ] * 2


def test_python_tells_of_cache_and_compilation() -> None:
    found = events(
        "I0306 06:26:48.603058 135530450430272 compilation_cache.py:213] Writing jit_f to persistent compilation cache",
        "DEBUG:jax._src.compiler:Persistent compilation cache hit for 'jit_g'",
        "WARNING:jax._src.dispatch:Finished XLA compilation of jit(step) in 2.5 sec",
    )
    assert [(event.kind, event.module) for event in found] == [
        (LineKind.COMPILED, "jit_f"),
        (LineKind.CACHE_HIT, "jit_g"),
        (LineKind.COMPILED, "jit_step"),
    ]


def test_first_info_line_of_xla_is_an_event_and_no_other() -> None:
    lines = [
        "I0306 06:26:45.5 1 xla_bridge.py:704] Unable to",
        ABSEIL + "one",
        ABSEIL + "two",
    ]
    found = list(read_events(io.BytesIO("\n".join(lines).encode())))
    assert [(event.kind, event.line) for event in found] == [(LineKind.INFO, 2)]


def test_line_numbers_count_every_line() -> None:
    text = "step 1\n\nstep 2\r\n" + ABSEIL + "Using PGLE profile from x.pb\r\n"
    found = [
        event
        for event in read_events(io.BytesIO(text.encode()))
        if event.kind is LineKind.READ
    ]
    assert [(event.line, event.subject) for event in found] == [(4, "x.pb")]


class OneByte(io.RawIOBase):
    """A pipe that gives a byte at a time."""

    def __init__(self, data: bytes) -> None:
        self.data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read1(self, _size: int = -1) -> bytes:
        return self.data.read(1)


def test_a_slow_pipe_gives_the_same_events() -> None:
    data = (
        ABSEIL
        + "Using PGLE profile from x.pb\nnoise\n"
        + TSL
        + "Found 1 instructions from the profile."
    ).encode()
    assert list(read_events(OneByte(data))) == list(read_events(io.BytesIO(data)))


class Endless(io.RawIOBase):
    """A log of `chunks` blocks, made as it is read."""

    def __init__(self, chunks: int, block: bytes) -> None:
        self.left, self.block = chunks, block

    def readable(self) -> bool:
        return True

    def read(self, _size: int = -1) -> bytes:
        self.left -= 1
        return self.block if self.left >= 0 else b""


@pytest.mark.parametrize(
    "block",
    [b"x" * (1 << 20), b"step 17 loss 2.3\n" * 60_000, b"profile of XLA_FLAGS\n" * 200],
    ids=["one endless line", "training log", "lines of near interest"],
)
def test_memory_does_not_grow_with_the_log(block: bytes) -> None:
    tracemalloc.start()
    try:
        assert list(read_events(Endless(64, block))) == []
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_cut_line_keeps_what_stands_at_its_beginning() -> None:
    line = (
        ABSEIL
        + "Found profile, using profile guided latency estimator. Profile:"
        + "x" * (3 * MAX_LINE_BYTES)
    )
    assert [event.kind for event in events(line, "")] == [LineKind.FOUND_PROFILE]


def test_bytes_that_are_no_text_are_replaced() -> None:
    data = b"\xff\xfe" + ABSEIL.encode() + b"Using PGLE profile from \xff.pb\n"
    found = [
        event for event in read_events(io.BytesIO(data)) if event.kind is LineKind.READ
    ]
    assert found[0].subject == "�.pb"


@pytest.mark.parametrize(
    "name",
    [
        "gemm_fusion_dot.17",
        "input_reduce_fusion",
        "wrapped_convert",
        "fusion",
        "extracted",
    ],
)
def test_sub_modules_by_name(name: str) -> None:
    assert is_sub_module(name)


@pytest.mark.parametrize(
    "name",
    [
        "jit_step",
        "pjit__wrapped_step_fn",
        "jit_fusion_test",
        "SyncTensorsGraph.12",
        "main",
    ],
)
def test_program_modules_by_name(name: str) -> None:
    assert not is_sub_module(name)


def test_clones_by_name() -> None:
    assert is_sub_module("jit_step-clone")
    assert not is_sub_module("jit_clone")
