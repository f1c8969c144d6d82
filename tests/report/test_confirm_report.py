"""The words of a verdict on a log."""

import pytest

from pgle.report.verify import confirm_page, main_lines
from pgle.xla.log.verdict import LogVerdict, ModuleVerdict, ProfileUse, Remedy


@pytest.mark.parametrize(("use", "label"), [(ProfileUse.USED, "note"), (ProfileUse.NOT_USED, "to do")])
def test_a_used_profile_leaves_nothing_to_do(use: ProfileUse, label: str) -> None:
    assert list(main_lines(ModuleVerdict("jit_step", use, "so", remedy="profile again"))) == [
        "so",
        f"{label}: profile again",
    ]


def test_a_profile_of_another_compilation_is_used_with_a_doubt() -> None:
    main = ModuleVerdict("jit_step", ProfileUse.USED, "a name is missing", remedy=str(Remedy.STALE))
    page = confirm_page("run.log", LogVerdict((main,)))
    assert (page.tone, page.verdict) == ("warn", "jit_step: profile used, but it was made for another compilation")
