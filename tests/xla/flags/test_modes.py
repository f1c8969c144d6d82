"""The flags of each kind of run."""

import pytest

from pgle.errors import UserError
from pgle.xla.flags.presets import PROFILE_MODES, flags_for, preset
from pgle.xla.flags.text import FlagPlan, parse_flags

LHS = "xla_gpu_enable_latency_hiding_scheduler"


def values(mode, version="0.12.0.1", user="", **options):
    return parse_flags(flags_for(mode, version, user, **options).xla_flags).effective()


def codes(mode, version="0.12.0.1", user="", **options):
    return {
        warning.code for warning in flags_for(mode, version, user, **options).warnings
    }


@pytest.mark.parametrize("mode", PROFILE_MODES)
@pytest.mark.parametrize("version", ["0.4.38", "0.10.2", "0.12.0.1"])
def test_a_profile_mode_and_its_preset_set_the_same(mode, version):
    assert (
        values(mode, version)
        == parse_flags(preset(f"pgle-profile-{mode}", version).xla_flags).effective()
    )


COMBINING = "xla_gpu_experimental_enable_heuristic_collective_combining"


@pytest.mark.parametrize(
    ("version", "value"),
    [("0.6.2", None), ("0.7.2", "false"), ("0.8.3", "false"), ("0.9.2", None)],
)
def test_every_run_combines_the_same_collectives(version, value):
    """0.7 and 0.8 combine by a trial schedule, which the mode and the profile change."""
    runs = [values(mode, version) for mode in ("sync", "async", "baseline")]
    runs.append(values("perf", version, profile="p.pbtxt"))
    assert {run.get(COMBINING) for run in runs} == {value}


def test_what_keeps_the_collectives_is_said_once():
    said = [
        mode for mode in ("sync", "baseline") if "combining" in codes(mode, "0.8.3")
    ]
    assert said == ["sync"]
    assert "combining" not in codes("sync", "0.10.2")


def test_a_user_who_has_collectives_combined_by_the_schedule_is_warned():
    user = f"--{COMBINING}=true"
    assert values("sync", "0.8.3", user)[COMBINING] == "true"
    assert codes("sync", "0.10.2", user) >= {"combining"}


@pytest.mark.parametrize("mode", PROFILE_MODES)
def test_profile_runs_have_no_command_buffers(mode):
    assert values(mode)["xla_gpu_enable_command_buffer"] == ""


def test_other_runs_keep_command_buffers_as_they_are():
    assert "xla_gpu_enable_command_buffer" not in values("baseline")


def test_sync_keeps_lhs_on():
    assert values("sync")[LHS] == "true"


def test_perf_gives_the_profile():
    plan = flags_for("perf", "0.12.0.1", profile="/run/p-1234.pbtxt")
    assert (
        parse_flags(plan.xla_flags).value("xla_gpu_pgle_profile_file_or_directory_path")
        == "/run/p-1234.pbtxt"
    )


def test_log_lines_are_made_visible():
    assert flags_for("perf", "0.12.0.1", profile="p.pbtxt").environment == {
        "TF_CPP_MIN_LOG_LEVEL": "0"
    }


def dump_of(plan: FlagPlan) -> str | None:
    return parse_flags(plan.xla_flags).value("xla_dump_to")


def test_dumps_are_asked_for_where_there_is_a_place():
    assert dump_of(flags_for("async", "0.12.0.1", dump_to="/run/dump")) == "/run/dump"
    assert "xla_dump_latency_hiding_schedule" in values("async", dump_to="/run/dump")
    assert "xla_dump_latency_hiding_schedule" not in values("async")


def test_the_users_own_dump_directory_wins():
    plan = flags_for("async", "0.12.0.1", "--xla_dump_to=/mine", dump_to="/run/dump")
    assert dump_of(plan) == "/mine"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.12.0.1", "XLA silently ignores the profile"),
        ("0.10.2", "a profile switches LHS on"),
        ("0.5.0", "the profile is ignored"),
    ],
)
def test_perf_with_the_users_lhs_off_says_what_it_does(version, words):
    plan = flags_for("perf", version, f"--{LHS}=false", profile="p.pbtxt")
    assert (
        words
        in next(
            warning for warning in plan.warnings if warning.code == "lhs-off"
        ).message
    )


def test_a_baseline_with_the_users_profile_is_warned_about():
    assert "has-profile" in codes(
        "baseline", user="--xla_gpu_pgle_profile_file_or_directory_path=p.pbtxt"
    )


def test_a_profile_run_with_the_users_command_buffers_is_warned_about():
    assert codes("async", user="--xla_gpu_enable_command_buffer=FUSION") >= {
        "kept",
        "graphs",
    }


def test_nothing_to_overlap_is_warned_about():
    assert "no-async" in codes(
        "baseline", user="--xla_gpu_disable_async_collectives=allgather"
    )


def test_perf_without_a_profile_is_refused():
    with pytest.raises(UserError, match="needs a profile"):
        flags_for("perf", "0.12.0.1")


def test_another_mode_with_a_profile_is_refused():
    with pytest.raises(UserError, match="mode async takes no profile"):
        flags_for("async", "0.12.0.1", profile="p.pbtxt")


def test_flags_in_a_file_must_be_read_first():
    with pytest.raises(UserError, match="names a file"):
        flags_for("async", "0.12.0.1", "flags.txt")
