"""A verdict that two compilations must share. They differ in the kernels that multiply matrices.

On a GPU XLA times several kernels for each matrix product and takes the fastest (autotuning).
Without one it can time none, and its default makes a Triton fusion of each product. What a schedule
gains may hang on that choice, so a second compilation takes the other one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from pgle.costs.profile.value import Origin
from pgle.schedule.predict import Gain, Prediction
from pgle.worth import is_worth
from pgle.xla.flags.text import FlagList, typed_flag

TRITON = "xla_gpu_enable_triton_gemm"
ROUNDED = (
    0.0005  # share of the step: a smaller change is shown as 0.0 %, and has no sign
)


@dataclass(frozen=True, slots=True)
class Controlled:
    """What a schedule gains over another, by two compilations."""

    first: Gain  # with the user's flags
    other: Gain | None = (
        None  # with the other kernels for products; None: nothing hangs on them
    )

    @property
    def shares(self) -> tuple[float, ...]:
        """What each compilation gains, as a share of the step."""
        if self.other is None:
            return (self.first.share,)
        return self.first.share, self.other.share

    @property
    def depends(self) -> bool:
        """Whether one compilation gains what the other loses, and either is worth a word."""
        low = min(self.shares)
        high = max(self.shares)
        return low <= -ROUNDED and high >= ROUNDED and is_worth(max(-low, high))

    @property
    def answer(self) -> Gain:
        """The smaller change, with the range of both; no change if it depends on the kernels."""
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
    """The flag by which a second compilation takes the other kernels for matrix products."""
    is_off = FlagList(tuple(map(typed_flag, flags))).is_true(TRITON) is False
    value = "true" if is_off else "false"
    return f"--{TRITON}={value}"


def hangs_on_choice(predictions: Iterable[Prediction]) -> bool:
    """Whether a schedule has a matrix product whose cost was not measured.

    A profile of the job names the kernels that its autotuning took. If it has a cost of every
    product under the names of this compilation, these are the kernels.
    """
    ops = chain.from_iterable(prediction.program.ops for prediction in predictions)
    return any(op.kind == "matmul" and op.origin is not Origin.MEASURED for op in ops)
