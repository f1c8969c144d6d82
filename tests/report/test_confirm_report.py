"""The words of a verdict on a log."""

import pytest

from pgle.report.confirm import confirm_page, main_lines
from pgle.xla.log.verdict import Bounds, LogVerdict, ModuleVerdict, ProfileUse


@pytest.mark.parametrize(
    ("use", "label"), [(ProfileUse.USED, "note"), (ProfileUse.NOT_USED, "to do")]
)
def test_a_used_profile_leaves_nothing_to_do(use: ProfileUse, label: str) -> None:
    assert list(
        main_lines(ModuleVerdict("jit_step", use, "so", remedy="profile again"))
    ) == [
        "so",
        f"{label}: profile again",
    ]


def test_a_profile_with_a_gap_that_may_be_is_used() -> None:
    main = ModuleVerdict(
        "jit_step", ProfileUse.USED, "", covered=35, wanted=36
    ).held_against(Bounds(time=0.95))
    page = confirm_page("run.log", LogVerdict((main,)))
    assert (page.tone, page.verdict) == (
        "good",
        "jit_step: profile used (35 of 36 instructions)",
    )
    assert any(line.startswith("note: ") for line in page.notes)


@pytest.mark.parametrize(("found", "lines"), [(89, 1), (86, 0)])
def test_a_count_that_differs_from_that_of_xla_is_explained(
    found: int, lines: int
) -> None:
    main = ModuleVerdict(
        "jit_step", ProfileUse.USED, "so", found=found, covered=86, wanted=86
    )
    said = [line for line in main_lines(main) if line.startswith("XLA's 89 count")]
    assert len(said) == lines
