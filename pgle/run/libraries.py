"""Libraries that call jax for a program: what a user writes at their modules and functions.

A call site is in the program, but jax is called by a file of the library. That file cannot be
edited, so each row says what of the library does the same: arguments of flax 0.12
(github.com/google/flax) and Equinox 0.13 (github.com/patrick-kidger/equinox).
"""

from __future__ import annotations

from dataclasses import dataclass

from pgle.run.capture.captured import CallSite

_FUSED = 'jax.nn.dot_product_attention({operands}{mask}, implementation="cudnn")'
_POLICY = "policy=jax.checkpoint_policies.{value}"


@dataclass(frozen=True)
class LibraryCall:
    """What is written to change a call of jax that a library makes."""

    kind: str  # as of a call site
    files: str  # that call jax begin with it
    edit: str  # with ``{value}``, or ``{mask}`` and ``{takes_mask}``
    operands: str = "q, k, v"  # of the fused call
    own_mask: str = "mask=mask"  # the library's mask as that of the fused call

    def written(self, site: CallSite, value: str) -> str:
        """Return the edit of a call, as text to write into the program."""
        given = masked(site, self.own_mask)
        takes = ", mask=None" if site.mask == "own" else ""
        return self.edit.format(
            value=value,
            fused=_FUSED.format(operands=self.operands, mask=given),
            takes_mask=takes,
        )


CALLS = (
    LibraryCall(
        "attention",
        "flax/",
        "MultiHeadAttention(…, attention_fn=lambda q, k, v{takes_mask}, **_: {fused})",
        own_mask="mask=mask if mask is None else mask.astype(bool)",
    ),
    LibraryCall(
        "attention",
        "equinox/",
        "eqx.nn._attention.dot_product_attention = "
        "lambda q, k, v, *_{takes_mask}, **__: {fused}[:, 0]",
        operands="q[:, None], k[:, None], v[:, None]",
        own_mask="mask=mask if mask is None else mask[None]",
    ),
    LibraryCall("remat", "flax/nnx/", f"nnx.remat(…, {_POLICY})"),
    LibraryCall("remat", "flax/", f"nn.remat(…, {_POLICY})"),
    LibraryCall("remat", "equinox/", f"eqx.filter_checkpoint(…, {_POLICY})"),
    LibraryCall("unroll", "flax/nnx/", "nnx.scan(…, unroll={value})"),
    LibraryCall("unroll", "flax/", "nn.scan(…, unroll={value})"),
)
"""The first row that fits is taken."""


def masked(site: CallSite, own: str) -> str:
    """A mask as further arguments of jax's attention."""
    causal = ", is_causal=True" if site.causal else ""
    return f"{causal}, {own}" if site.mask else causal


def edit_of(site: CallSite, value: str, usual: str) -> str:
    """What is written at a call site: as its library wants it, else as `usual` has it."""
    for call in CALLS:
        if site.kind == call.kind and site.library.startswith(call.files):
            return call.written(site, value)
    return usual
