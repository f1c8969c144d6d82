"""What is written at a call of jax that an installed library makes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgle.run.alternatives import BY_HAND, Alternative, Kind
from pgle.run.capture.captured import CallSite
from pgle.run.libraries import edit_of

FUSED = 'jax.nn.dot_product_attention(q, k, v, {}implementation="cudnn")'
OWN_MASK = "mask=mask if mask is None else mask.astype(bool)"
FLAX = "flax/nnx/nn/attention.py"


@pytest.mark.parametrize(
    ("mask", "causal", "takes", "given"),
    [
        # another call of the module may have a mask
        ("", False, ", mask=None", f"{OWN_MASK}, "),
        ("", True, "", "is_causal=True, "),
        ("own", False, ", mask=None", f"{OWN_MASK}, "),
        ("own", True, ", mask=None", f"is_causal=True, {OWN_MASK}, "),
    ],
)
def test_flax_takes_attention_as_an_argument(
    mask: str, causal: bool, takes: str, given: str
) -> None:
    site = CallSite(
        "attention", "train.py:9", "xla", mask=mask, causal=causal, library=FLAX
    )
    function = f"lambda q, k, v{takes}, **_: {FUSED.format(given)}"
    expected = f"MultiHeadAttention(…, attention_fn={function})"
    assert edit_of(site, "cudnn", "usual") == expected


def test_policies_and_loops_are_arguments_of_the_library_that_calls_jax() -> None:
    def written(kind: str, library: str, value: str) -> str:
        return edit_of(CallSite(kind, "a.py:1", library=library), value, "usual")

    policy = "policy=jax.checkpoint_policies.dots_saveable"
    assert written("remat", "flax/core/lift.py", "dots_saveable") == (
        f"nn.remat(…, {policy})"
    )
    assert written("unroll", "flax/nnx/transforms/iteration.py", "2") == (
        "nnx.scan(…, unroll=2)"
    )
    assert written("unroll", "", "2") == "usual"


def test_attention_by_hand_in_a_library_is_edited_where_the_library_is_called() -> None:
    usual = 'jax.nn.dot_product_attention(…, implementation="cudnn")'
    made = Alternative(Kind.ATTENTION, BY_HAND, "cudnn", usual)
    own = CallSite("attention", "a.py:1", BY_HAND, call="attend(q, k, v)", note="q")
    other = CallSite("attention", "a.py:9", BY_HAND, call="attend(q, k)", note="q")
    assert made.at([own]).edit == "attend(q, k, v)"
    both = made.at([own, other])
    assert both.edit == "# a.py:1\nattend(q, k, v)\n# a.py:9\nattend(q, k)"
    assert (both.where, both.limit) == ("a.py:1, a.py:9", "q")
    library = CallSite("attention", "a.py:1", BY_HAND, library=FLAX)
    assert "attention_fn=" in made.at([library]).edit


def test_a_line_that_runs_in_several_ways_needs_each_edit_for_its_own_calls() -> None:
    made = Alternative(Kind.ATTENTION, BY_HAND, "cudnn", "usual")
    own = CallSite("attention", "a.py:1", BY_HAND, call="attend(causal)")
    cross = CallSite("attention", "a.py:1", BY_HAND, call="attend(mask)")
    both = made.at([own, cross])
    assert both.edit == "# a.py:1\nattend(causal)\n# a.py:1\nattend(mask)"
    assert both.limit.startswith("a.py:1 runs in several ways")
    elsewhere = CallSite("attention", "a.py:2", BY_HAND, call="attend(mask)")
    assert not made.at([own, elsewhere]).limit


@pytest.mark.parametrize(
    ("kind", "usual"),
    [
        ("attention", "dot_product_attention(…)"),
        ("unroll", "jax.lax.scan(…, unroll=2)"),
    ],
)
def test_the_edit_of_another_library_is_words(kind: str, usual: str) -> None:
    file = "haiku/_src/attention.py"
    site = CallSite(kind, "a.py:1", call="attend(q, k, v)", library=file)
    said = edit_of(site, "2", usual)
    assert said.startswith("your own ") and "haiku's" in said
    assert "attend(" not in said
    change = Alternative(Kind(kind), "a.py:1", "2", said, library=file)
    assert change.is_in_words
    assert not replace(change, library=FLAX).is_in_words
    assert not replace(change, library="").is_in_words


def test_a_decorator_stays_a_decorator() -> None:
    site = CallSite("remat", "a.py:1", form="decorator", library="flax/core/lift.py")
    assert edit_of(site, "dots_saveable", "usual") == (
        "@functools.partial(nn.remat, policy=jax.checkpoint_policies.dots_saveable)"
    )


def test_a_function_of_flax_is_replaced_where_the_program_calls_it() -> None:
    file = "flax/linen/attention.py"
    site = CallSite(
        "attention", "a.py:1", library=file, called="dot_product_attention", mask="own"
    )
    own = "mask=mask.astype(bool), "
    assert edit_of(site, "cudnn", "usual") == FUSED.format(own)
    in_module = replace(site, called="__call__")
    assert "attention_fn=" in edit_of(in_module, "cudnn", "usual")
