"""Presets: adapted to the release, with reasons, and nothing in them that the release rejects."""

import pytest

from pgle.errors import UserError
from pgle.xla.flags.catalogue import catalogue, known_flags, known_in
from pgle.xla.flags.presets import preset, presets

NAMES = tuple(presets())


def values(name, jaxlib):
    return {
        flag.name: flag.value for flag in preset(name, jaxlib, profile="p.pbtxt").flags
    }


def test_the_presets_are_those_promised():
    assert set(NAMES) >= {
        "lhs", "pgle-profile-sync", "pgle-profile-async", "pgle-perf", "fsdp",
        "recommended",
    }  # fmt: skip


@pytest.mark.parametrize("version", known_flags().releases)
@pytest.mark.parametrize("name", NAMES)
def test_a_preset_holds_only_flags_its_release_knows(name, version):
    for flag in preset(name, version, profile="p.pbtxt").flags:
        assert known_in(flag.name, version), flag


@pytest.mark.parametrize("name", NAMES)
def test_every_choice_has_a_reason_a_source_and_an_entry_in_the_catalogue(name):
    for choice in preset(name, profile="p.pbtxt").choices:
        assert choice.reason
        assert choice.source
        assert choice.name in catalogue()


def test_sync_keeps_lhs_on_and_disables_every_kind():
    assert values("pgle-profile-sync", "0.12.0.1") == {
        "xla_gpu_enable_latency_hiding_scheduler": "true",
        "xla_gpu_disable_async_collectives": "allcollectives",
        "xla_gpu_enable_command_buffer": "",
    }


def test_old_releases_get_the_kinds_one_by_one():
    assert (
        "allreduce,allgather,"
        in values("pgle-profile-sync", "0.4.38")["xla_gpu_disable_async_collectives"]
    )


def test_pipelining_has_new_names_since_0_11_1():
    assert "xla_gpu_enable_pipelined_all_gather" in values("fsdp", "0.10.2")
    assert values("fsdp", "0.12.0.1")["xla_gpu_pipeline_all_gather"] == "on"


def test_a_replacement_is_said():
    codes = {
        (finding.code, finding.flag) for finding in preset("fsdp", "0.12.0.1").findings
    }
    assert ("replaced", "xla_gpu_enable_pipelined_all_gather") in codes


def test_what_a_release_cannot_do_is_left_out_with_a_warning():
    findings = preset("pgle-profile-sync", "0.4.26").findings
    assert ("left-out", "xla_gpu_disable_async_collectives") in {
        (item.code, item.flag) for item in findings
    }


def test_what_a_release_does_by_default_is_left_out_silently():
    combining = "xla_gpu_experimental_enable_heuristic_collective_combining"
    assert values("pgle-perf", "0.7.2")[combining] == "false"
    assert combining not in values("pgle-perf", "0.12.0.1")
    assert combining not in values("pgle-perf", "0.4.38")


def test_the_perf_preset_needs_a_profile():
    with pytest.raises(UserError, match="needs a profile; add --profile"):
        preset("pgle-perf")


def test_an_unknown_preset_names_the_others():
    with pytest.raises(UserError, match="choose one of lhs, "):
        preset("fast")


@pytest.mark.parametrize(
    ("profile", "ignored"),
    [
        ("p.pbtxt", False),
        ("dir/p.pb", False),
        ("v1.2/profiles", False),
        ("p.txt", True),
        ("p.pbtxt.gz", True),
    ],
)
def test_a_profile_that_xla_would_ignore_is_told(profile, ignored):
    assert (
        "no-effect"
        in [
            item.code
            for item in preset("pgle-perf", "0.12.0.1", profile=profile).findings
        ]
    ) == ignored
