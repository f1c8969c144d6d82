"""The words of a verdict on a log."""

import pytest

from pgle.report.experiment.confirm import main_lines
from pgle.xla.log.module_verdict import ModuleVerdict, ProfileUse


@pytest.mark.parametrize(("use", "label"), [(ProfileUse.USED, "note"), (ProfileUse.NOT_USED, "to do")])
def test_a_used_profile_leaves_nothing_to_do(use: ProfileUse, label: str) -> None:
    assert list(main_lines(ModuleVerdict("jit_step", use, "so", remedy="profile again"))) == [
        "so",
        f"{label}: profile again",
    ]
