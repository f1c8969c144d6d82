"""What a comparison of step times says."""

from __future__ import annotations

from enum import StrEnum


class Verdict(StrEnum):
    """The answer on NEW."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"  # the interval is within the margin of equality
    UNDECIDED = "undecided"  # neither a difference nor equality is shown
