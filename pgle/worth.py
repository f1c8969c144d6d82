"""The one limit that makes a saving or a loss of a step worth an action."""

LEAST_GAIN = 0.005
"""Share of the step. Users report controlled gains of profiles of 1 to 2 % on tuned models, and
null results are common (see docs). For `compare`, steps are equal if they differ by less.
"""


def is_worth(part: float, of: float = 1.0) -> bool:
    """Whether saving a part of a step is worth an action.

    Args:
        part: the saving, in the unit of `of`; without `of`, a share of the step.
        of: length of the step.
    """
    return part >= LEAST_GAIN * of
