"""The catalogue's verdicts on flags and values against those of the installed jaxlib."""

import pytest

from pgle.run.ask.jaxlib import probe
from pgle.xla.flags.catalogue import catalogue, lint
from pgle.xla.flags.text import Flag, FlagList

VALUES = (None, "", "true", "3", "-1", "0.5", "all", "FUSION,CUBLAS", "+FUSION", "a b")
FATAL = {"unknown", "removed", "too-new", "bad-value", "needs-value"}


def trials():
    for setting in catalogue().values():
        if setting.is_flag:
            yield from (Flag(setting.name, value) for value in VALUES)
            yield from (Flag(setting.name, value) for value in setting.values)
            yield from (
                Flag(setting.name, value)
                for _, value in setting.defaults
                if value != "unset"
            )


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return probe(trials())


def is_fatal(flag, jaxlib):
    return any(
        finding.code in FATAL for finding in lint(FlagList((flag,)), jaxlib).findings
    )


def test_the_catalogue_raises_no_false_alarm(asked):
    wrong = [
        flag
        for flag in trials()
        if asked.verdicts[flag.text].status == "known" and is_fatal(flag, asked.jaxlib)
    ]
    assert wrong == []


def test_all_that_is_fatal_is_caught_but_an_item_of_a_later_release(asked):
    missed = [
        flag
        for flag in trials()
        if asked.verdicts[flag.text].status != "known"
        and not is_fatal(flag, asked.jaxlib)
    ]
    assert all("COLLECTIVES_KERNEL" in (flag.value or "") for flag in missed), missed
