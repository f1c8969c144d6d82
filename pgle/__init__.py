"""pgle: give XLA's latency-hiding scheduler measured costs, and prove that it used them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pgle.stepping import step

__version__ = "0.1.0"
__all__ = ["__version__", "step"]


def __getattr__(name: str) -> Any:
    """`pgle.step`, imported when it is first used."""
    if name != "step":
        raise AttributeError(f"module 'pgle' has no attribute {name!r}")
    from pgle.stepping import step

    return step
