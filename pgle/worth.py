"""The one limit from which on a saving or a loss of a step is worth an action."""

LEAST_GAIN = 0.005
"""Of the step. Controlled gains of profiles that users report on tuned models are 1 to 2 %, and
null results are common (see docs). `compare` takes steps that differ by less as equal.
"""


def is_worth(part: float, of: float = 1.0) -> bool:
    """Whether saving a part of a step is worth an action.

    Args:
        part: of the step, in the unit of `of`; without it, a share.
        of: the step.
    """
    return part >= LEAST_GAIN * of
