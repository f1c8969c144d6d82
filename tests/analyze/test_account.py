"""A measured step as an account: findings become opportunities, each in one place."""

from pgle.analyze.account import FINDINGS, OF_RECORDING, OF_SCHEDULE
from pgle.analyze.rules import RULES


def test_every_finding_is_an_opportunity_or_of_the_schedule_or_of_the_recording() -> (
    None
):
    groups = (set(FINDINGS), set(OF_SCHEDULE), set(OF_RECORDING))
    assert set.union(*groups) == set(RULES)
    assert sum(map(len, groups)) == len(RULES)
