"""Orders of collectives that agree or not, as two to eight ranks start them."""

from __future__ import annotations

import pytest

from pgle.schedule.launches import (
    COLLECTIVES,
    HANG,
    MAIN,
    MIX,
    PAIRS,
    Collective,
    Launches,
    differences,
    from_text,
)

ALL = ((0, 1, 2, 3),)
HOSTS = ((0, 1), (2, 3))
ACROSS = ((0, 2), (1, 3))
RING = ((0, 1), (1, 2), (2, 3), (3, 0))
EACH_ONE = {str(rank): [rank] for rank in range(4)}


BASE = Collective("all-gather", "f32[8]", ALL, COLLECTIVES)


def gather(label="", **given):
    return BASE._replace(label=label, **given)


def reduce(label="", **given):
    return BASE._replace(kind="all-reduce", label=label, **given)


def permute(label="", pairs=RING, **given):
    kind = "collective-permute"
    return BASE._replace(kind=kind, groups=pairs, lane=PAIRS, label=label, **given)


def started(*collectives, devices=4):
    """Each collective is started, and waited for at once."""
    events = []
    for index in range(len(collectives)):
        events += [2 * index, 2 * index + 1]
    return Launches(devices, collectives, tuple(events))


def overlapped(*collectives, devices=4):
    """All are started before the first is waited for."""
    count = len(collectives)
    starts = [2 * index for index in range(count)]
    waits = [2 * index + 1 for index in range(count)]
    return Launches(devices, collectives, tuple(starts + waits))


def odd_one_out(usual, odd, rank="3"):
    """Four ranks of which one runs another program."""
    return {**dict.fromkeys(EACH_ONE, usual), rank: odd}


def test_equal_programs_agree():
    order = started(gather(), reduce())
    assert differences(dict.fromkeys(EACH_ONE, order), EACH_ONE) == []


def test_another_order_on_one_communicator_hangs():
    usual = started(gather(), reduce())
    odd = started(reduce(), gather())
    (found,) = differences(odd_one_out(usual, odd), EACH_ONE)
    assert (found.effect, found.communicator, found.position) == (HANG, (0, 1, 2, 3), 1)
    assert [side.ranks for side in found.sides] == [("0", "1", "2"), ("3",)]
    assert [side.collective.kind for side in found.sides] == [
        "all-gather",
        "all-reduce",
    ]


def test_the_first_difference_counts_though_another_follows():
    usual = started(reduce(), gather(shape="f32[2]"), gather(shape="f32[4]"))
    odd = started(reduce(), gather(shape="f32[4]"), gather(shape="f32[2]"))
    (found,) = differences(odd_one_out(usual, odd), EACH_ONE)
    assert found.position == 2


@pytest.mark.parametrize("numbered", [True, False], ids=["by channel", "by name"])
def test_equal_kinds_and_shapes_with_other_data_mix(numbered):
    names = [("", 1), ("", 2)] if numbered else [("wq", 1), ("wk", 1)]
    one, two = (gather(label, channel=channel) for label, channel in names)
    (found,) = differences(odd_one_out(started(one, two), started(two, one)), EACH_ONE)
    assert (found.effect, found.position) == (MIX, 1)


def test_other_numbers_of_the_same_collectives_are_no_difference():
    """Another release numbers channels otherwise."""
    usual = started(gather("wq", channel=1), reduce("loss", channel=2))
    odd = started(gather("wq", channel=7), reduce("loss", channel=5))
    assert differences(odd_one_out(usual, odd), EACH_ONE) == []


def test_other_names_of_the_same_collectives_are_no_difference():
    """Another release of jax names operations otherwise."""
    usual = started(gather("jit(step)/while/dot"), gather("jit(step)/dot"))
    odd = started(gather("jit(step)/scan/dot"), gather("jit(step)/dot"))
    assert differences(odd_one_out(usual, odd), EACH_ONE) == []


def test_a_rank_that_ends_early_is_named_with_nothing_more_to_start():
    (found,) = differences(
        odd_one_out(started(gather(), reduce()), started(gather())), EACH_ONE
    )
    assert (found.position, found.sides[1].collective) == (2, None)


def test_groups_that_lie_within_ranks_may_come_in_any_order():
    """Two processes of two devices each."""
    placed = {"0": [0, 1], "1": [2, 3]}
    one = gather(groups=HOSTS)
    two = reduce(groups=HOSTS)
    orders = {"0": started(one, two), "1": started(two, one)}
    assert differences(orders, placed) == []


def test_groups_that_cross_ranks_may_not():
    placed = {"0": [0, 1], "1": [2, 3]}
    one = gather(groups=ACROSS)
    two = reduce(groups=ACROSS)
    orders = {"0": started(one, two), "1": started(two, one)}
    assert [item.communicator for item in differences(orders, placed)] == [(0, 2)]


def test_without_places_every_group_counts_as_shared():
    one = gather(groups=HOSTS)
    two = reduce(groups=HOSTS)
    orders = {"a": started(one, two), "b": started(two, one)}
    assert [item.effect for item in differences(orders, {})] == [HANG]


def test_two_communicators_on_one_stream_in_another_order_hang():
    """Rank 1 waits for all while rank 0 waits for rank 1 alone."""
    pair = reduce(groups=HOSTS)
    everybody = reduce()
    usual = overlapped(pair, everybody)
    odd = overlapped(everybody, pair)
    (found,) = differences(odd_one_out(usual, odd, "1"), EACH_ONE)
    assert found.effect == HANG


def test_two_communicators_on_two_streams_may_come_in_another_order():
    one = gather()
    two = permute()
    usual = overlapped(one, two)
    odd = overlapped(two, one)
    assert differences(odd_one_out(usual, odd), EACH_ONE) == []


def test_two_streams_hang_if_the_program_waits_in_between():
    one = gather()
    two = permute()
    orders = odd_one_out(started(one, two), started(two, one))
    assert [item.effect for item in differences(orders, EACH_ONE)] == [HANG]


def test_a_circle_of_three_communicators_hangs():
    """Each pair of ranks shares one collective; each rank waits for the next one."""
    ab, bc, ca = (gather(groups=(pair,)) for pair in ((0, 1), (1, 2), (2, 0)))
    orders = {
        "0": started(ab, ca, devices=3),
        "1": started(bc, ab, devices=3),
        "2": started(ca, bc, devices=3),
    }
    placed = {str(rank): [rank] for rank in range(3)}
    assert [item.effect for item in differences(orders, placed)] == [HANG]
    orders["2"] = started(bc, ca, devices=3)
    assert differences(orders, placed) == []


def test_transfers_between_pairs_are_matched_by_source_and_target():
    up = permute("up")
    down = permute("down", pairs=((1, 0), (2, 1)))
    orders = odd_one_out(overlapped(up, down), overlapped(down, up))
    assert differences(orders, EACH_ONE) == []
    larger = permute("up", shape="f32[16]")
    orders = odd_one_out(overlapped(up, down), overlapped(larger, down))
    (found,) = differences(orders, EACH_ONE)
    assert (found.effect, found.communicator) == (HANG, (2, 3))


def test_sends_and_receives_meet_though_their_opcodes_differ():
    pair = ((0, 1),)
    send = Collective("send", "f32[4]", pair, "")
    recv = Collective("recv", "f32[4]", pair, "")
    orders = {"0": started(send, recv), "1": started(recv, send)}
    assert differences(orders, {"0": [0], "1": [1]}) == []


def test_a_synchronous_and_an_asynchronous_form_agree():
    usual = started(gather(lane=MAIN), reduce())
    odd = started(gather(), reduce(lane=MAIN))
    assert differences(odd_one_out(usual, odd), EACH_ONE) == []


def test_an_order_comes_back_from_its_text():
    order = overlapped(gather("wq", channel=3), permute())
    assert from_text(order.to_text()) == order


def test_equal_sizes_of_other_shapes_mix_since_nccl_sees_no_shapes():
    tall = gather(shape="bf16[8,2]", channel=1)
    wide = gather(shape="bf16[2,8]", channel=2)
    orders = odd_one_out(started(tall, wide), started(wide, tall))
    assert [item.effect for item in differences(orders, EACH_ONE)] == [MIX]


def test_a_loop_of_unknown_length_on_one_side_proves_nothing():
    usual = started(reduce(), gather())
    odd = Launches(4, usual.collectives, (0, 1, 0, 1, 2, 3), is_cut=True)
    assert differences(odd_one_out(usual, odd), EACH_ONE) == []
