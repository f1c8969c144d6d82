"""What is known of collective matmul (windowed einsum) in each jaxlib release."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.xla.flags.catalogue import release
from pgle.xla.flags.text import Finding

STREAMS = "xla_gpu_multi_streamed_windowed_einsum"
THRESHOLD = "xla_gpu_threshold_for_windowed_einsum_mib"

SPLIT_WITHOUT_GPU_SINCE = "0.11.2"
"""First release found to split matmuls when it compiles without a GPU; 0.7.2, 0.10.2 and 0.11.0 do not."""
BROKEN = "0.10.2"
"""The verifier refuses its own multi-streamed loops on GPUs (jax-ml/jax#39200)."""


def collective_matmul(jaxlib: str, *, streams: bool) -> Iterator[Finding]:
    """Traps of splitting matmuls with a release; `streams`: on several streams."""
    if release(jaxlib) == release(BROKEN) and streams:
        message = (
            f"on GPUs jaxlib {BROKEN} fails to compile what it splits where a device's share of a dimension is above "
            "1024 ('async_computation expected to contain only the root', jax-ml/jax#39200)"
        )
        yield Finding("warning", "fails", STREAMS, message, f"set --{STREAMS}=false, or take another jaxlib")
    if release(jaxlib) < release(SPLIT_WITHOUT_GPU_SINCE):
        message = (
            f"a rehearsal will not show its effect: without a GPU jaxlib {jaxlib} leaves matmuls whole, whatever the "
            f"threshold, sharding or shape ({SPLIT_WITHOUT_GPU_SINCE} and newer split them)"
        )
        remedy = f"rehearse with jaxlib {SPLIT_WITHOUT_GPU_SINCE} or newer, or look for collective-permute in a dump"
        yield Finding("note", "not-rehearsed", THRESHOLD, message, f"{remedy} of a GPU run")
