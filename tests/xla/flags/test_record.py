"""The public record: every effect has a link and a figure, and is found by the flag's older and
newer names.
"""

import json

import pytest

from pgle.cli.main import run
from pgle.xla.flags.catalogue import effects_of, find, lint, public_record, summary
from pgle.xla.flags.text import parse_flags


@pytest.mark.parametrize("effect", public_record(), ids=lambda effect: effect.id)
def test_every_effect_has_a_link_a_figure_and_known_flags(effect):
    assert effect.source.startswith(
        ("https://github.com/", "https://developer.nvidia.com/")
    )
    assert effect.change
    assert all(-50 < reading < 50 for reading in effect.change)
    for text in effect.set:
        assert find(text).name


def test_ids_are_unique():
    assert len({effect.id for effect in public_record()}) == len(public_record())


def test_throughput_is_turned_into_step_time():
    """The sweep reports the change of throughput: its pipelined arm is -2.35 %, a longer step."""
    (pipelined,) = (
        effect for effect in public_record() if effect.id == "moe-fsdp-pipelined"
    )
    assert pipelined.change == (2.35,)


def test_an_effect_is_found_under_the_older_and_the_newer_name():
    old, new = (
        effects_of("xla_gpu_enable_pipelined_all_gather", "true"),
        effects_of("xla_gpu_pipeline_all_gather", "on"),
    )
    assert old == new
    assert old
    assert not effects_of("xla_gpu_pipeline_all_gather", "off")


def test_a_summary_gives_the_range_over_all_readings():
    found = effects_of("xla_gpu_enable_pipelined_all_gather", "true")
    assert summary(found) == "2 reports, +2.4 to +7.1 %, none on a dense model"
    assert summary(()) == "no report"


def test_explain_shows_what_others_measured(capsys):
    assert (
        run(["flags", "explain", "xla_gpu_enable_pipelined_all_gather", "--json"]) == 0
    )
    record = json.loads(capsys.readouterr().out)["setting"]["record"]
    assert [entry["id"] for entry in record] == [
        "moe-fsdp-pipelined",
        "moe-fsdp-pipelined-double",
    ]
    assert run(["flags", "explain", "xla_gpu_enable_pipelined_all_gather"]) == 0
    assert "marin-community/marin#8054" in "".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("jaxlib", "warned"), [("0.10.2", True), ("0.12.0.1", False)])
def test_lint_names_a_flag_with_which_a_jaxlib_does_nothing(jaxlib, warned):
    """Without a GPU windowed einsum splits nothing before jaxlib 0.11.2 (jax-ml/jax#39200)."""
    flags = parse_flags("--xla_gpu_threshold_for_windowed_einsum_mib=0")
    found = [
        finding.flag
        for finding in lint(flags, jaxlib).findings
        if finding.code == "no-effect"
    ]
    assert found == (["xla_gpu_threshold_for_windowed_einsum_mib"] if warned else [])
