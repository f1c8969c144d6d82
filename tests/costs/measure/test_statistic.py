import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgle.costs.measure.samples import parse_statistic
from pgle.errors import UserError

values = st.lists(st.floats(0, 1e9), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("median", np.median),
        ("mean", np.mean),
        ("min", np.min),
        ("max", np.max),
        ("p90", lambda v: np.percentile(v, 90)),
    ],
)
@given(first=values, second=values)
def test_groups_get_what_numpy_gives_each(name, reference, first, second):
    both = np.array(first + second)
    groups = np.array([0] * len(first) + [2] * len(second))
    got = parse_statistic(name).over_groups(both, groups, 3)
    assert got[[0, 2]] == pytest.approx([reference(first), reference(second)])
    assert np.isnan(got[1])


@pytest.mark.parametrize("name", ["p101", "p", "avg", "", "p9x"])
def test_unknown_names_are_refused_with_the_choices(name):
    with pytest.raises(UserError, match="median, mean, min, max"):
        parse_statistic(name)
