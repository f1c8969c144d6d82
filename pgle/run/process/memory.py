"""The share of a GPU's memory that jax's allocator takes, according to environment variables."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pgle.errors import UserError

MEMORY_FRACTION = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Variables that set the share of a GPU's memory for jax's allocator, the newer first."""
DEFAULT_FRACTION = 0.75  # jax's own default


def memory_fraction(environment: Mapping[str, str]) -> float:
    """Return the share of a GPU's memory that jax's allocator may take; 0 means no limit."""
    if environment.get("XLA_PYTHON_CLIENT_ALLOCATOR", "").lower() == "platform":
        return 0.0
    given = [name for name in MEMORY_FRACTION if environment.get(name)]
    if not given:
        return DEFAULT_FRACTION
    name = given[0]
    try:
        fraction = float(environment[name])
    except ValueError:
        fraction = math.nan
    if not 0 < fraction < math.inf:
        raise UserError(
            "must be a number above 0",
            where=f"{name}={environment[name]}",
            remedy=f"set {DEFAULT_FRACTION}, jax's default",
        )
    return fraction
