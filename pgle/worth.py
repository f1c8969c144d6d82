"""The one limit from which on a saving or a loss of a step is worth an action."""

LEAST_GAIN = 0.005
"""Of the step. Controlled gains of profiles that users report on tuned models are 1 to 2 %, and
null results are common (see docs). `compare` takes steps that differ by less as equal.
"""


def is_worth(share: float) -> bool:
    """Whether saving this share of a step is worth an action."""
    return share >= LEAST_GAIN
