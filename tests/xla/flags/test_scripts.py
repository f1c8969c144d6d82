"""XLA flags in launch scripts."""

from __future__ import annotations

from pgle.xla.flags.scripts import findings_in, flags_in_script

LHS = "xla_gpu_enable_latency_hiding_scheduler"


def found(text: str) -> list[tuple[int, str]]:
    flags = flags_in_script(text)
    findings = findings_in("run.sh", flags, "0.10.2")
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
