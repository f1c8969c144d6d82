"""Libraries that call jax for a program: what a user writes at their modules and functions.

A call site is in the program, but jax is called by a file of the library. That file cannot be
edited, so each row says what of the library does the same: arguments of flax 0.12
(github.com/google/flax) and Equinox 0.13 (github.com/patrick-kidger/equinox).
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
"""Attention in f32, rounded to bf16 around the fused call (`pgle_hook/alternatives.py`)."""

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
"""Equinox maps its attention of one head over all. Mapped as it is, the fused call would have all
heads copied to the front as batch rows; so the map gets a rule that computes all heads at once.
"""


@dataclass(frozen=True)
class LibraryCall:
    """What is written to change a call of jax that a library makes."""

    kind: str  # as of a call site
    files: str  # that call jax begin with it
    edit: str  # with ``{fused}`` and ``{takes_mask}``; else the function that is called
    options: str = ""  # that the function is given, with ``{value}``
    own_mask: str = "mask=mask"  # the library's mask as that of the fused call
    called: str = ""  # the library's function that the program calls; empty: any

    def written(self, site: CallSite, value: str) -> str:
        """Return the edit of a call, as text to write into the program."""
        if self.options:
            return call_of(site, self.edit, self.options.format(value=value))
        is_shown = bool(site.mask or site.causal or site.options)
        if not is_shown and "{takes_mask}" in self.edit:
            site = replace(site, mask="own")  # another call of the module may have one
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
"""The first row that fits is taken."""


def masked(site: CallSite, own: str) -> str:
    """A mask as further arguments of jax's attention."""
    causal = "is_causal=True" if site.causal else ""
    mask = own if site.mask else ""
    return "".join(f", {each}" for each in (causal, site.options, mask) if each)


def call_of(site: CallSite, function: str, options: str) -> str:
    """A call with further arguments, as it is written at its place."""
    if site.form == "decorator":
        return f"@functools.partial({function}, {options})"
    if site.form == "partial":
        return f"@functools.partial({function}, …, {options})"
    return f"{function}(…, {options})"


def edit_of(site: CallSite, value: str, usual: str) -> str:
    """What is written at a call site: as its library wants it, else as `usual` has it."""
    for call in CALLS:
        is_called = call.called in ("", site.called)
        is_in_library = site.library.startswith(call.files)
        if site.kind == call.kind and is_in_library and is_called:
            return call.written(site, value)
    return usual
