"""XLA's failures that happen only without a GPU, and the flags that avoid them.

On a GPU, XLA's autotuning drops each kernel that does not compile, and some passes ask the GPU's
libraries. Without a GPU, XLA takes an untested default kernel, and such passes fail.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pgle.schedule.control import TRITON
from pgle.xla.flags.text import FlagList, typed_flag

DISABLED = "xla_disable_hlo_passes"


@dataclass(frozen=True)
class Detour:
    """A flag that avoids a failure that would not happen on a GPU."""

    says: re.Pattern[str]  # XLA's message
    flag: str  # name of the flag, without dashes
    value: str
    why: str  # the reason, as a clause about the program


DETOURS = (
    Detour(
        re.compile(r"cuSolver internal error"),  # observed with jaxlib 0.4.38 to 0.6.2
        DISABLED,
        "gpusolver-rewriter",
        "XLA asks cuSOLVER for the memory of a Cholesky decomposition, which needs a GPU",
    ),
    Detour(
        re.compile(r"CubSort\w+ error"),  # observed with jaxlib 0.4.38
        "xla_gpu_enable_cub_radix_sort",
        "false",
        "XLA asks CUB for the memory of a sort, which needs a GPU",
    ),
    # openxla/xla `xla/service/gpu/transforms/nest_gemm_fusion.cc`, observed with jaxlib 0.8.3 and
    # 0.10.2; the flag is worth a try for other errors of Triton, too
    Detour(
        re.compile(""),
        TRITON,
        "false",
        "XLA's default Triton kernel of a matrix product does not compile, and only a GPU can "
        "choose another one",
    ),
)
"""In the order in which they are tried. The last one is for any message."""


def detour(said: str, flags: Iterable[str]) -> str:
    """Return the flag that may avoid a failure, by XLA's message; empty if there is none, or
    `flags` already have it.
    """
    given = FlagList(tuple(map(typed_flag, flags)))
    for item in DETOURS:
        before = given.value(item.flag) or ""
        values = before.split(",")
        if item.says.search(said) is None or item.value in values:
            continue
        if item.flag == TRITON and given.is_true(TRITON) is False:
            continue
        is_list = item.flag == DISABLED and before
        value = f"{before},{item.value}" if is_list else item.value
        return f"--{item.flag}={value}"
    return ""


def detour_warnings(flags: Iterable[str]) -> tuple[str, ...]:
    """A warning for each flag that a compilation needed without a GPU."""
    taken = [flag.lstrip("-").partition("=")[0] for flag in flags]
    return tuple(
        f"{item.why}; compiled with --{item.flag}={item.value}"
        for item in DETOURS
        if item.flag in taken
    )


def only_choice(flags: Iterable[str]) -> str:
    """Why a program has only one choice of kernels for its products, by the flags that its
    compilations needed without a GPU; empty if it has two.
    """
    if all(typed_flag(flag).name != TRITON for flag in flags):
        return ""
    return f"without a GPU the program compiles with --{TRITON}=false only"
