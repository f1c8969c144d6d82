"""XLA flags in launch scripts."""

from __future__ import annotations

import pytest

from pgle.xla.flags.scripts import findings_in, flags_in_script

LHS = "xla_gpu_enable_latency_hiding_scheduler"


def found(text: str, path: str = "run.sh") -> list[tuple[int, str]]:
    flags = flags_in_script(text)
    findings = findings_in(path, flags, "0.10.2")
    return [(item.line, item.finding.code) for item in findings]


def test_flags_have_their_lines_and_values() -> None:
    text = f"export XLA_FLAGS=\"--{LHS}=true \\\n  --xla_dump_to='/a b'\""
    flags = [
        (item.line, item.flag.name, item.flag.value) for item in flags_in_script(text)
    ]
    assert flags == [(1, LHS, "true"), (2, "xla_dump_to", "/a b")]


def test_a_misspelt_flag_is_found_at_each_place() -> None:
    assert found("--xla_gpu_no_such=1\n\n--xla_gpu_no_such=1") == [
        (1, "unknown"),
        (3, "unknown"),
    ]


def test_a_bad_value_is_found_and_a_filled_in_one_is_not_judged() -> None:
    assert found(f"--{LHS}=maybe --{LHS}=$ON --{LHS}={{on}}") == [(1, "bad-value")]


def test_comments_are_left_out() -> None:
    assert found("  # --xla_gpu_no_such=1\n// --xla_gpu_no_such") == []


def test_two_branches_may_set_a_flag_differently() -> None:
    assert found(f"--{LHS}=true\n--{LHS}=false") == []


@pytest.mark.parametrize(
    "line",
    [
        'flags = "--xla_gpu_all_reduce_combine_threshold_bytes=" + str(n)',
        f'flags = f"--{LHS}={{on}}"',
        '"""Folder of ``--xla_dump_to``, see --xla_gpu_autotune_level."""',
        'f"{name}: --xla_dump_to is missing"',
        '"--xla_gpu_all_reduce_combine_threshold_bytes=@BYTES@"',
        "# `--xla_gpu_*` are flags",
        'what = "flags that begin with --xla_gpu_*"',
        'parser.add_argument("--xla_flags_file")',
        "flags += ['--xla_tpu_thing=1']",
        'os.environ["LIBTPU_INIT_ARGS"] = "--xla_enable_thing=true"',
        "x = 1  # not --xla_gpu_no_such=1",
    ],
)
def test_what_python_puts_together_or_only_mentions_is_not_judged(line: str) -> None:
    assert found(line, "train.py") == []


@pytest.mark.parametrize(
    "line",
    [
        "--xla_gpu_all_reduce_combine_threshold_bytes=`cat bytes`",
        "--xla_gpu_all_reduce_combine_threshold_bytes=@BYTES@",
        "export LIBTPU_INIT_ARGS='--xla_enable_thing=true'",
        "  --xla_tpu_enable_thing=true",
        "run  # not --xla_gpu_no_such=1",
    ],
)
def test_what_a_shell_fills_in_or_libtpu_reads_is_not_judged(line: str) -> None:
    assert found(line) == []


def test_a_script_of_a_shell_must_give_a_value() -> None:
    assert found("python x.py --xla_dump_to") == [(1, "needs-value")]
    assert found(f"--{LHS}=maybe", "train.py") == [(1, "bad-value")]
    assert found("--xla_dump_to=gs://a/b --xla_gpu_no_such=1") == [(1, "unknown")]
