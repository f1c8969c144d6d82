"""The verdict of a comparison of step times."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """How the steps of NEW compare with those of BASE."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # the interval is within the margin of equality
    UNDECIDED = "undecided"  # neither a difference nor equality is shown
