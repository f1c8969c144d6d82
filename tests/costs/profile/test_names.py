import pytest

from pgle.costs.profile.value import join_name, split_name, strip_remat


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("0123::fusion.1", ("0123", "fusion.1")),
        ("fusion.1", ("", "fusion.1")),
        ("::fusion.1", ("", "::fusion.1")),
        ("0123::a::b", ("", "0123::a::b")),
        ("0123::", ("0123", "")),
        ("", ("", "")),
    ],
)
def test_a_prefix_is_one_of_two_parts(written: str, parts: tuple[str, str]) -> None:
    assert split_name(written) == parts


def test_a_name_joined_is_what_was_split() -> None:
    assert join_name(*split_name("0123::fusion.1")) == "0123::fusion.1"
    assert join_name(*split_name("::fusion.1")) == "::fusion.1"


@pytest.mark.parametrize(
    ("name", "bare"),
    [
        ("fusion.remat", "fusion"),
        ("fusion.remat12", "fusion"),
        ("fusion.remat.1", "fusion.remat.1"),
        ("a", "a"),
    ],
)
def test_only_a_trailing_remat_is_cut_off(name: str, bare: str) -> None:
    assert strip_remat(name) == bare
