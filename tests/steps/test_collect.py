"""Step times out of records and console logs."""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from pgle.errors import UserError
from pgle.run.inputs.step_times import StepLine, console_records, read_runs
from pgle.steps.collect import read_console, read_csv, read_json_lines, step_number
from pgle.steps.series import Mark, Series, once_per_step, slowest_rank


def times(series: Series) -> dict[int, float]:
    return dict(
        zip(series.step.tolist(), np.round(series.step_time_s, 9).tolist(), strict=True)
    )


def test_json_lines_with_optional_keys() -> None:
    text = '{"step": 7, "step_time_s": 0.25, "loss": 2.5, "profiled": true}\n'
    series = read_json_lines(text.splitlines(), "a")
    assert times(series) == {7: 0.25}
    assert (series.loss[0], series.mark[0]) == (2.5, Mark.PROFILED)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"step": 1, "step_ti', "not JSON"),
        ('{"step": 1}', "no step_time_s"),
        ('{"step": 1, "step_time_s": -1}', "not a positive number"),
        ('{"step": 1, "step_time_s": NaN}', "not a positive number"),
        ("[1, 2]", "not a JSON object"),
    ],
)
def test_a_malformed_line_is_a_record(line: str, reason: str) -> None:
    series = read_json_lines(
        f'{{"step": 0, "step_time_s": 0.2}}\n{line}\n'.splitlines(), "a"
    )
    assert times(series) == {0: 0.2}
    assert series.malformed[0].line == 2
    assert reason in series.malformed[0].reason


def test_a_loss_that_is_no_number_is_infinite_not_missing() -> None:
    series = read_json_lines(
        '{"step": 0, "step_time_s": 1, "loss": NaN}\n{"step": 1, "step_time_s": 1}\n'.splitlines(),
        "a",
    )
    assert np.isinf(series.loss[0])
    assert np.isnan(series.loss[1])


def test_metrics_file_of_maxtext() -> None:
    line = json.dumps(
        {"step": 3.0, "perf/step_time_seconds": 3.604, "learning/loss": 2.014}
    )
    series = read_json_lines(line.splitlines(), "a")
    assert times(series) == {3: 3.604}
    assert series.loss[0] == 2.014


def test_csv_with_milliseconds_and_semicolons() -> None:
    assert times(
        read_csv("step;step_time_ms;other\n1;200;x\n2;210.5;y\n".splitlines(), "a")
    ) == {
        1: 0.2,
        2: 0.2105,
    }


def test_csv_without_step_times_names_its_columns() -> None:
    with pytest.raises(UserError, match="among: a, b; name it step_time_s"):
        read_csv("a,b\n1,2\n".splitlines(), "x.csv")


@pytest.mark.parametrize(
    ("text", "format", "expected"),
    [
        (
            "completed step: 7, seconds: 3.604, TFLOP/s/device: 286.671, loss: 2.014",
            "maxtext",
            {7: 3.604},
        ),
        ("step 7: 0.2013 s", "plain", {7: 0.2013}),
        ("Step=7 loss=2.5 time=201.3 ms", "plain", {7: 0.2013}),
        (
            "iteration 7/100 | elapsed time per iteration (ms): 201.3 | lr 1e-4",
            "plain",
            {7: 0.2013},
        ),
        ("[10:02:11] step: 7 | step_time_s: 2.013e-1", "plain", {7: 0.2013}),
        ("iter 7 loss 2.1 dt 201.3ms tok/s 9000", "plain", {7: 0.2013}),
        ("step 7/60 eta 3.2 s, loss 2.3, 0.2013 s/step", "plain", {7: 0.2013}),
        ("step 7 loss=2.1 time 12:30:05 took 201.3 ms", "plain", {7: 0.2013}),
        ("step 7: elapsed 3.1 min, 0.2013 s", "plain", {7: 0.2013}),
        ("step 7: 0.2013 s, elapsed 93.1 s", "plain", {7: 0.2013}),
        ("step 7: elapsed 93.1 s, step_time: 0.2013", "plain", {7: 0.2013}),
    ],
)
def test_console_lines(text: str, format: str, expected: dict[int, float]) -> None:
    series = read_console(text.splitlines(), "log")
    assert series.format == format
    assert times(series) == expected


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("step_i: 700, training loss: 3.64\nI0306 steps/sec: 0.5\n", 700),
        (
            "8/10 [==>] - ETA: 0s 90ms/step\r10/10 [===] - 2s 123ms/step - loss: 1.2\n",
            8,
        ),
    ],
)
def test_means_over_many_steps_are_no_step_times_and_name_their_step(
    text: str, step: int
) -> None:
    with pytest.raises(UserError, match="no line of it holds a step time"):
        read_console(text.splitlines(), "log")
    assert step_number(text.splitlines()[0]) == step


def test_a_step_line_that_is_cut_short_is_a_record() -> None:
    series = read_console(
        "completed step: 1, seconds: 2.0, loss: 1\ncompleted step: 2, sec".splitlines(),
        "log",
    )
    assert times(series) == {1: 2.0}
    assert series.malformed[0].line == 2


def test_own_pattern() -> None:
    series = read_console(
        "t 5 took#0.3#".splitlines(),
        "log",
        pattern=r"t (?P<step>\d+) took#(?P<s>[\d.]+)#",
    )
    assert times(series) == {5: 0.3}


def test_a_pattern_without_a_time_is_refused() -> None:
    with pytest.raises(UserError, match="no group named s, ms or us"):
        read_console("x".splitlines(), "log", pattern="(?P<step>.)")


def test_a_log_without_steps_says_what_to_print() -> None:
    with pytest.raises(
        UserError, match="no line of it holds a step time; print 'step 7"
    ):
        read_console("hello\nworld\n".splitlines(), "log")


def test_steps_while_a_profiler_runs_are_marked() -> None:
    log = "step 1: 1 s\nCapture range started in the application.\nstep 2: 1 s\nCapture range ended\nstep 3: 1 s\n"
    marks = read_console((log + "step 4: 1 s\nstep 5: 1 s\n").splitlines(), "log").mark
    assert [bool(mark & Mark.PROFILED) for mark in marks] == [
        False,
        True,
        True,
        False,
        False,
    ]


def test_the_slowest_rank_counts() -> None:
    one = read_json_lines(
        '{"step": 0, "step_time_s": 1}\n{"step": 1, "step_time_s": 4, "profiled": true}'.splitlines(),
        "r0",
    )
    two = read_json_lines(
        '{"step": 0, "step_time_s": 3}\n{"step": 1, "step_time_s": 2}'.splitlines(),
        "r1",
    )
    merged = slowest_rank([one, two])
    assert times(merged) == {0: 3.0, 1: 4.0}
    assert merged.mark.tolist() == [0, Mark.PROFILED]


def line(step: int, seconds: float) -> str:
    return json.dumps({"step": step, "step_time_s": seconds}) + "\n"


def test_a_run_directory_is_one_run_of_several_ranks(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text(line(0, 1))
    (tmp_path / "steps.rank0001.jsonl").write_text(line(0, 2))
    assert [times(run) for run in read_runs(str(tmp_path))] == [{0: 2.0}]


def test_a_directory_of_run_directories_is_several_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.jsonl").write_text(line(0, 1))
    assert len(read_runs(str(tmp_path))) == 2


def test_a_glob_is_several_runs(tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "c.txt"):
        (tmp_path / name).write_text("step 0: 1 s\n")
    assert len(read_runs(str(tmp_path / "*.log"))) == 2


def test_an_experiment_is_not_one_side(tmp_path: Path) -> None:
    for name in ("baseline", "perf"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "steps.jsonl").write_text(line(0, 1))
    with pytest.raises(
        UserError, match=r"several stages.*pgle compare .*/baseline .*/perf"
    ):
        read_runs(str(tmp_path))


def test_python_dicts_are_records_as_json_lines_are(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("{'step': 7, 'step_time': 0.25, 'loss': nan, 'name': 'a'}\n")
    (series,) = read_runs(str(log))
    assert times(series) == {7: 0.25}
    assert series.loss[0] == float("inf")


def test_records_among_other_lines_of_a_log_are_read() -> None:
    log = ["starting", "{'step': 7, 'step_time': 0.25}", '{"step": 8, "time_ms": 300}']
    assert times(read_console(log, "log")) == {7: 0.25, 8: 0.3}


@pytest.mark.parametrize(
    "line",
    [
        "{'step': 7, 'step_time': print(1)}",
        "{'step': 7, 'step_time': 0.25",
        f"{{'step': 7, 'step_time': 0.25, 'text': '{'a' * 20_000}'}}",
    ],
)
def test_what_is_no_plain_dict_of_a_step_is_a_malformed_record(line: str) -> None:
    (item,) = read_json_lines([line], "log").malformed
    assert item.reason == "not JSON (cut short?)"


@pytest.mark.parametrize(
    ("bar", "expected"),
    [
        ("train: 7it [00:02, 4.00it/s, loss=2.5]", {7: 0.25}),
        (" 42%|####  | 42/100 [00:12<00:17,  1.50s/it]", {42: 1.5}),
        ("Training step: 42%|## | 42/100 [00:12<00:17, 2.00step/s]", {42: 0.5}),
        ("  7/? [1:00:02<?, 4.00it/s, v_num=0]", {7: 0.25}),
    ],
)
def test_rates_of_tqdm_are_step_times(bar: str, expected: dict[int, float]) -> None:
    series = read_console([bar], "log")
    assert times(series) == expected
    (warning,) = series.warnings
    assert "tqdm's smoothed rates" in warning


def test_the_bar_of_the_steps_counts_and_not_that_of_the_epochs() -> None:
    log = [
        "1/50 [00:01<00:49, 1.00it/s]",
        "2/50 [00:02<00:48, 2.00it/s]",
        "2/50 [00:02<00:48, 1.33it/s]",  # closed: the mean rate
        "1/3 [00:02<00:04, 2.00s/it]",
    ]
    assert times(read_console(log, "log")) == {1: 1.0, 2: 0.5}


def test_smoothed_rates_are_not_written_as_printed_step_times() -> None:
    log = ["7it [00:02, 4.00it/s]"]
    lines = [StepLine(7, 10.0), StepLine(8, 10.5)]
    assert console_records(log, lines, {}) == [
        {"step": 8, "step_time_s": 0.5, "between_lines": True}
    ]


def test_a_compressed_log(tmp_path: Path) -> None:
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(b"step 0: 1.5 s\n"))
    assert times(read_runs(str(tmp_path / "a.log.gz"))[0]) == {0: 1.5}


def test_readings_of_a_clock_are_no_step_times() -> None:
    with pytest.raises(UserError, match="only grow"):
        read_console(
            [f"step {i}: elapsed {0.2 * (i + 1):.3f} s" for i in range(20)], "log"
        )


@pytest.mark.parametrize("name", ["a.jsonl", "a.log"])
def test_a_step_number_beyond_all_bounds_is_a_record(name: str, tmp_path: Path) -> None:
    huge = 10**30
    lines = {
        "a.jsonl": f'{{"step": {huge}, "step_time_s": 0.2}}\n{{"step": 1, "step_time_s": 0.2}}\n'
    }
    lines["a.log"] = f"step {huge}: 0.2 s\nstep 1: 0.2 s\n"
    (tmp_path / name).write_text(lines[name])
    (series,) = read_runs(str(tmp_path / name))
    assert series.step.tolist() == [1]
    assert series.malformed[0].reason == "the step number is too large"


def test_a_step_number_beyond_every_float_is_none(tmp_path: Path) -> None:
    lines = [
        '{"step": 1%s, "step_time_s": 0.2}' % ("0" * 400),
        '{"step": 1, "step_time_s": 0.2}',
    ]
    (tmp_path / "steps.jsonl").write_text("\n".join(lines))
    (series,) = read_runs(str(tmp_path / "steps.jsonl"))
    assert series.step_time_s.tolist() == [0.2, 0.2]


def test_an_empty_path_is_not_the_working_directory() -> None:
    with pytest.raises(UserError, match="empty path"):
        read_runs("")


def test_a_field_longer_than_any_number_is_refused() -> None:
    with pytest.raises(UserError, match="not a table of step times"):
        read_csv(f"step,step_time_s\n1,{'0' * 200_000}9\n".splitlines(), "x.csv")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.jsonl",
            '{"step": 3, "step_time_s": 0.25}\r\n{"step": 4, "step_time_s": 0.5}\r\n',
        ),
        ("a.csv", "step,step_time_s\r\n3,0.25\r\n4,0.5\r\n"),
        ("a.log", "step 3: 0.25 s\r\nstep 4: 0.5 s\r\n"),
    ],
)
def test_text_as_windows_writes_it(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(text.encode("utf-8-sig"))
    assert times(read_runs(str(tmp_path / name))[0]) == {3: 0.25, 4: 0.5}


@pytest.mark.parametrize(
    "number", ["1e308", "1e-320", "1722945600.123", "inf", "nan", "0", "-1"]
)
def test_a_number_that_is_no_step_time_is_a_record(number: str) -> None:
    series = read_csv(f"step,step_time_s\n0,0.2\n1,{number}\n".splitlines(), "a")
    assert times(series) == {0: 0.2}
    assert len(series.malformed) == 1
    assert times(
        read_console(f"step 0: 0.2 s\nstep 1: time={number} s\n".splitlines(), "a")
    ) == {0: 0.2}


def test_a_loss_too_large_for_a_mean_is_infinite() -> None:
    assert np.isinf(
        read_json_lines(
            '{"step": 0, "step_time_s": 1, "loss": 1e308}\n'.splitlines(), "a"
        ).loss[0]
    )


@pytest.mark.parametrize(
    "text", ['step,step_time_ms\n1,"1,234.5"\n', "step;step_time_ms\n1;201,5\n"]
)
def test_csv_with_separators_in_numbers_is_malformed(text: str) -> None:
    series = read_csv(text.splitlines(), "a")
    assert (len(series), len(series.malformed)) == (0, 1)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("step 7: 12,345.6 ms", {7: 12.3456}),
        ("step 1,234: 0.2 s", {1234: 0.2}),
        ("step=7,time=1,234.5ms", {7: 1.2345}),
        ("step 7,0.25 s", {7: 0.25}),
        ("step 7,201 ms", {7: 0.201}),
        ("[rank0] 12:00:01 step 12,345, loss 2.1, step_time 0.25", {12345: 0.25}),
    ],
)
def test_console_numbers_with_thousands(line: str, expected: dict[int, float]) -> None:
    assert times(read_console(line.splitlines(), "a")) == expected


@pytest.mark.parametrize(
    "line", ["step 7: 0,2013 s", "step 7: time=1,2013 s", "step 7 took 12,5 ms"]
)
def test_a_decimal_comma_is_not_cut_off(line: str) -> None:
    with pytest.raises(UserError, match="no line of it holds a step time"):
        read_console(line.splitlines(), "a")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "\x1b[32mINFO\x1b[0m step \x1b[1m7\x1b[0m: time=\x1b[33m0.25\x1b[0m s",
            {7: 0.25},
        ),
        (
            "[rank0] \x1b[34mcompleted step: \x1b[1m7\x1b[0m, seconds: 0.250, loss: 2.0",
            {7: 0.25},
        ),
    ],
)
def test_colours_are_no_part_of_a_line(line: str, expected: dict[int, float]) -> None:
    assert times(read_console(line.splitlines(), "a")) == expected
    assert step_number(line) == 7


def test_ranks_in_one_log_count_as_the_slowest(tmp_path: Path) -> None:
    lines = [
        f"[rank{rank}] step {step}: {0.2 + 0.01 * rank:.2f} s\n"
        for step in range(5)
        for rank in (1, 0, 2)
    ]
    (tmp_path / "a.log").write_text("".join(lines))
    series = read_runs(str(tmp_path / "a.log"))[0]
    assert times(series) == dict.fromkeys(range(5), 0.22)
    assert "written up to 3 times" in series.warnings[0]


def test_steps_repeated_after_a_restart_all_count(tmp_path: Path) -> None:
    steps = [*range(8), *range(5, 12)]
    (tmp_path / "a.jsonl").write_text(
        "".join(f'{{"step": {step}, "step_time_s": 0.2}}\n' for step in steps)
    )
    series = read_runs(str(tmp_path / "a.jsonl"))[0]
    assert series.step.tolist() == steps
    assert "go back once" in series.warnings[0]


def test_memory_does_not_grow_with_a_log(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.log.gz", "wt") as file:
        for step in range(20):
            file.write(
                f"step {step}: 0.25 s\n"
                + ("a line that says nothing of interest " * 15 + "\n") * 1_000
            )
    tracemalloc.start()
    try:
        (series,) = read_runs(str(tmp_path / "a.log.gz"))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20  # of 10 MiB
    finally:
        tracemalloc.stop()
    assert len(series) == 20


def test_of_a_line_without_end_only_the_beginning_counts(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "step 0: 0.25 s " + "x" * (3 << 20) + " step 7: 9 s\nstep 1: 0.5 s\n"
    )
    assert times(read_runs(str(tmp_path / "a.log"))[0]) == {0: 0.25, 1: 0.5}


def test_more_steps_than_any_run_has_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgle.steps.series.MOST_STEPS", 2)
    read_json_lines(line(1, 0.2).splitlines() * 2, "a")
    with pytest.raises(UserError, match="more than 2 steps"):
        read_json_lines(line(1, 0.2).splitlines() * 4, "a")


def test_a_step_that_ranks_wrote_often_has_the_slowest_time_and_all_that_is_known_of_it() -> (
    None
):
    rows = [
        {"step": 1, "step_time_s": 2.0, "checkpoint": True},
        {"step": 0, "step_time_s": 1.0},
        {"step": 1, "step_time_s": 3.0, "loss": 7.0},
        {"step": 0, "step_time_s": 0.5, "loss": 8.0, "profiled": True},
    ]
    series = once_per_step(read_json_lines(map(json.dumps, rows), "a"))
    assert times(series) == {0: 1.0, 1: 3.0}
    assert series.loss.tolist() == [8.0, 7.0]
    assert series.mark.tolist() == [Mark.PROFILED, Mark.CHECKPOINT]
