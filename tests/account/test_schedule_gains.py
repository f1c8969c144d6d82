"""What compiled schedules have shown, as opportunities."""

from pgle.account.schedule_gains import ScheduleGains, is_sure, pays
from pgle.account.value import OpportunityKind
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Gain


def gain(share: float, idle: float = 0.0) -> Gain:
    """A gain with no range."""
    return Gain(share, share, share, idle)


def tried(
    profile: Controlled, lhs: Controlled | None = None
) -> dict[OpportunityKind, float | None]:
    """The expected savings of a step of 1,000 µs, by kind."""
    schedules = ScheduleGains(
        lhs=lhs,
        profile=profile,
        now_us=1000.0,
        lhs_us=950.0,
        moved="1 of 4 collectives move",
        is_measured=True,
        lhs_flag="--xla_gpu_enable_latency_hiding_scheduler=true",
        measure=None,
    )
    return {item.kind: item.expected_us for item in schedules.opportunities}


def test_gains_of_lhs_and_profile_add_up_to_the_whole_change() -> None:
    found = tried(Controlled(gain(0.10)), Controlled(gain(0.05)))
    assert found == {OpportunityKind.SCHEDULER: 50.0, OpportunityKind.PROFILE: 95.0}


def test_a_gain_that_other_kernels_turn_into_a_loss_is_not_expected() -> None:
    depends = Controlled(gain(0.014), gain(-0.010))
    assert not is_sure(depends)
    assert tried(depends) == {}


def test_of_two_gains_the_smaller_is_expected() -> None:
    both = Controlled(gain(0.059), gain(0.009))
    assert round(tried(both)[OpportunityKind.PROFILE] or 0.0, 2) == 8.55


def test_a_gain_of_idle_time_is_noise_of_the_model() -> None:
    noise = Controlled(gain(0.02, idle=0.015))
    assert not pays(noise)
    assert tried(noise) == {OpportunityKind.PROFILE: None}


def test_a_loss_is_no_opportunity() -> None:
    assert tried(Controlled(gain(-0.01))) == {}
