"""A gain that two compilations must share. They use different kernels for matrix products.

On a GPU XLA times several kernels for each matrix product and takes the fastest (autotuning).
Without a GPU it can time none, and by default it makes a Triton fusion of each product. A
schedule's gain may depend on that choice, so a second compilation takes the other one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from pgle.costs.profile.value import Origin
from pgle.schedule.predict import Gain, Prediction
from pgle.worth import is_worth
from pgle.xla.flags.text import FlagList, typed_flag

TRITON = "xla_gpu_enable_triton_gemm"
# share of the step; pgle shows a smaller change as 0.0 %, without a sign
ROUNDED = 0.0005


@dataclass(frozen=True, slots=True)
class Controlled:
    """The gain of a schedule over another, by two compilations."""

    first: Gain  # with the user's flags
    # with the other kernels for products; None if they do not matter
    other: Gain | None = None
    # why there is no second compilation, in one line
    failure: str = field(default="", kw_only=True)

    @property
    def shares(self) -> tuple[float, ...]:
        """The gain in each compilation, as a share of the step."""
        if self.other is None:
            return (self.first.share,)
        return self.first.share, self.other.share

    @property
    def depends(self) -> bool:
        """Whether one compilation gains and the other loses, and one of them by `LEAST_GAIN`."""
        low = min(self.shares)
        high = max(self.shares)
        return low <= -ROUNDED and high >= ROUNDED and is_worth(max(-low, high))

    @property
    def answer(self) -> Gain:
        """The smaller change, with a range that holds both. The change is 0 if its sign depends on
        the kernels.
        """
        if self.other is None:
            return self.first
        smaller = min(self.first, self.other, key=lambda item: abs(item.share))
        is_sure = smaller.share * (self.first.share + self.other.share) > 0
        return Gain(
            share=smaller.share if is_sure else 0.0,
            low=min(self.first.low, self.other.low),
            high=max(self.first.high, self.other.high),
            idle_share=max(self.first.idle_share, self.other.idle_share),
        )


def other_choice(flags: Iterable[str]) -> str:
    """Return the flag of a second compilation with other kernels for matrix products: it turns
    Triton off, or on if `flags` turn it off.
    """
    is_off = FlagList(tuple(map(typed_flag, flags))).is_true(TRITON) is False
    value = "true" if is_off else "false"
    return f"--{TRITON}={value}"


def hangs_on_choice(predictions: Iterable[Prediction]) -> bool:
    """Whether a schedule has a matrix product whose cost was not measured.

    A profile of the job has the kernels that its autotuning took. If it has a cost for every
    product by the names of this compilation, this compilation has the same kernels.
    """
    ops = chain.from_iterable(prediction.program.ops for prediction in predictions)
    return any(op.kind == "matmul" and op.origin is not Origin.MEASURED for op in ops)
