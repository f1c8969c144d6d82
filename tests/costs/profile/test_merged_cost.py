"""Which ranks a set of profiles lacks."""

from pgle.costs.profile.merge import missing_ranks, united_modules


def profile_of(*ids, devices=None, ranks=4):
    record = {"name": "jit_step", "fingerprints": ["f"], "ranks": ranks, "collectives": 3}
    return {"modules": [{**record, "rank_ids": list(ids), "devices": len(ids) if devices is None else devices}]}


def test_all_ranks_need_no_word():
    assert missing_ranks([profile_of(0, 1), profile_of(2, 3)]) == []


def test_the_ranks_that_are_there_are_named():
    (line,) = missing_ranks([profile_of(0), profile_of(3)])
    assert line.startswith("jit_step: 2 of 4 ranks given (0, 3): collective costs include the wait")


def test_one_rank_given_twice_is_one_rank():
    assert "1 of 4 ranks given (2)" in missing_ranks([profile_of(2), profile_of(2)])[0]


def test_where_an_input_does_not_say_which_devices_count():
    assert missing_ranks([profile_of(0), profile_of(devices=3)]) == []
    assert "3 of 4 ranks given: collective" in missing_ranks([profile_of(0), profile_of(devices=2)])[0]


def test_a_group_of_unknown_size_is_of_two_at_least():
    assert "1 of several ranks given" in missing_ranks([profile_of(devices=1, ranks=0)])[0]
    assert missing_ranks([profile_of(devices=2, ranks=0)]) == []


def test_executions_add_up():
    (record,) = united_modules([{"modules": [{"name": "a", "fingerprints": ["x"], "executions_used": 3}]}] * 2)
    assert (record["executions_used"], record["fingerprints"]) == (6, ["x"])
