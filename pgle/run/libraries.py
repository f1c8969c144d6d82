"""Libraries that call jax for a program: the edit that a user writes where the program calls them.

The program calls the library, and a file of the library calls jax. The user cannot edit this file.
So each row names an equivalent: arguments of flax 0.12 (github.com/google/flax) and Equinox 0.13
(github.com/patrick-kidger/equinox).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgle.run.capture.captured import CallSite

_FUSED = 'jax.nn.dot_product_attention(q, k, v{mask}, implementation="cudnn")'
_ROUNDED = (
    'jax.nn.dot_product_attention(*(each.astype("bfloat16") for each in (q, k, v)){mask}, '
    'implementation="cudnn").astype(q.dtype)'
)
ROUNDED = "cudnn in bf16"
"""Attention on f32 arrays, rounded to bf16 for the fused call (`pgle_hook/alternatives.py`)."""

DEFINED = frozenset(("lookup", "loss", "cast"))
"""Kinds whose edit defines functions, which can be pasted wherever they are called."""

_POLICY = "policy=jax.checkpoint_policies.{value}"
_UNROLL = "unroll={value}"
_IN_EQUINOX = (
    "turned = lambda *each: [one.swapaxes(0, 1) for one in each]; "
    "spread = lambda mask, q: mask if mask is None else "
    "jax.numpy.broadcast_to(mask, (len(q), *mask.shape[-2:])); "
    "heads = lambda q, k, v, mask: {fused}.swapaxes(0, 1); "
    "attend = lambda q, k, v, mask: heads(*turned(q, k, v), spread(mask, q)); "
    "fused = jax.custom_batching.custom_vmap(lambda q, k, v, mask: "
    "attend(q[None], k[None], v[None], mask)[0]); "
    "fused.def_vmap(lambda size, batched, *each: (attend(*each), True)); "
    "eqx.nn._attention.dot_product_attention = "
    "lambda q, k, v, mask=None, *_, **__: fused(q, k, v, mask)"
)
"""Replacement for Equinox's attention, which maps the attention of one head over all heads. A plain
map of the fused call would copy all heads to the front as batch rows. This map has a rule that
computes all heads at once.
"""


@dataclass(frozen=True)
class LibraryCall:
    """The edit that changes jax calls which a library makes."""

    kind: str  # kind of call site
    files: str  # start of the path of the library's files that call jax
    edit: str  # edit with ``{fused}`` and ``{takes_mask}``; or the library's function
    options: str = ""  # new options of this function, with ``{value}``
    own_mask: str = "mask=mask"  # the library's mask, as an argument of the fused call
    called: str = ""  # the library's function that the program calls; empty: any

    def written(self, site: CallSite, value: str) -> str:
        """Return the edit of a call, as text to write into the program."""
        if self.options:
            return call_of(site, self.edit, self.options.format(value=value))
        is_shown = bool(site.mask or site.causal or site.options)
        if not is_shown and "{takes_mask}" in self.edit:
            # another call of the module may have a mask
            site = replace(site, mask="own")
        given = masked(site, self.own_mask)
        takes = ", mask=None" if site.mask else ""
        call = _ROUNDED if value == ROUNDED else _FUSED
        fused = call.format(mask=given)
        return self.edit.format(fused=fused, takes_mask=takes)


CALLS = (
    LibraryCall(
        "attention",
        "flax/",
        "{fused}",
        own_mask="mask=mask.astype(bool)",
        called="dot_product_attention",
    ),
    LibraryCall(
        "attention",
        "flax/",
        "MultiHeadAttention(…, attention_fn=lambda q, k, v{takes_mask}, **_: {fused})",
        own_mask="mask=mask if mask is None else mask.astype(bool)",
    ),
    LibraryCall("attention", "equinox/", _IN_EQUINOX, own_mask="mask=mask"),
    LibraryCall("remat", "flax/nnx/", "nnx.remat", _POLICY),
    LibraryCall("remat", "flax/", "nn.remat", _POLICY),
    LibraryCall("remat", "equinox/", "eqx.filter_checkpoint", _POLICY),
    LibraryCall("unroll", "flax/nnx/", "nnx.scan", _UNROLL),
    LibraryCall("unroll", "flax/", "nn.scan", _UNROLL),
)
"""The first row that matches a call site is used."""


def masked(site: CallSite, own: str) -> str:
    """Return a mask as further arguments of jax's attention."""
    causal = "is_causal=True" if site.causal else ""
    mask = own if site.mask else ""
    return "".join(f", {each}" for each in (causal, site.options, mask) if each)


def call_of(site: CallSite, function: str, options: str) -> str:
    """Return a call with further arguments, as text for its place in the program."""
    if site.form == "decorator":
        return f"@functools.partial({function}, {options})"
    if site.form == "partial":
        return f"@functools.partial({function}, …, {options})"
    return f"{function}(…, {options})"


def edit_of(site: CallSite, value: str, usual: str) -> str:
    """Return the edit for a call site: the form that its library needs, else `usual`. Of a library
    without a form here it is words, since nobody can paste a call into the library's file.
    """
    for call in CALLS:
        is_called = call.called in ("", site.called)
        is_in_library = site.library.startswith(call.files)
        if site.kind == call.kind and is_in_library and is_called:
            return call.written(site, value)
    if not site.library or site.kind in DEFINED:
        return usual
    name = _name_of(site.library)
    if site.kind == "attention":
        return f"{_OWN_ATTENTION} in place of {name}'s attention, {_SAME_MODEL}"
    return f"your own copy of {name}'s function, with {usual} in it"


_OWN_ATTENTION = "your own call of jax.nn.dot_product_attention by cudnn"
_SAME_MODEL = (
    "on bf16 in the order (batch, length, heads, features), with its scale and its mask"
)


def is_in_words(kind: str, library: str) -> bool:
    """Whether the edit of a library's call is words, and nothing to paste.

    Args:
        kind: of the call site.
        library: the library's file; empty: the program makes the call.
    """
    known = [call.files for call in CALLS if call.kind == kind]
    is_known = library.startswith(tuple(known))
    return bool(library) and kind not in DEFINED and not is_known


def in_library(site: CallSite) -> str:
    """Say where new functions go if a library does what they replace; empty: the program does."""
    if not site.library or site.kind not in DEFINED:
        return ""
    return f"{_name_of(site.library)} does it in {site.library}: use your own copy of that function"


def _name_of(library: str) -> str:
    return library.partition("/")[0]
