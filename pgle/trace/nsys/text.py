"""What XLA writes into its NVTX ranges: the texts of thunks, modules and compilation.

The texts are made by XLA's GPU annotation code (`xla/backends/gpu/runtime/annotation.cc`):
``XlaModule:#[prefix=P,]hlo_module=M[,program_id=N]#`` and ``Thunk:#[name=OPNAME,]hlo_op=OP[,unique_hlo_op_id=N]#``.
OPNAME is the framework's and may hold any of ``,()=[]#`` and spaces, so texts are read from the right.
"""

from __future__ import annotations

import re
from enum import IntEnum

from pgle.trace.table import ModuleKey


class RangeKind(IntEnum):
    """What an XLA range names."""

    THUNK = 0
    MODULE = 1
    COMPILE = 2  # compilation or autotuning: GPU work below it is no part of any program


THUNK, MODULE, COMPILE = RangeKind  # asked for once: a member of an enum takes as long as all else of a text


PREFIXES = ("Thunk:", "XlaModule:", "XlaAutotuner", "XlaCompile", "XlaPass", "XlaEmit", "XlaOptimize", "XlaCreate")
"""How the texts of XLA's ranges begin; every other range (NCCL's, the user's) is left out."""

MAX_TEXT = 1 << 20
"""A longer text is not XLA's; the longest real ones hold a whole ``dot_general[...]`` and stay under 64 KiB."""

_KERNEL_NUMBER = re.compile(r"(?:_\d+)+$")
_XLA_KERNEL = re.compile(r"^(?:\w*fusion|wrapped_\w+?)(?:_\d+)*$")


def range_kind(text: str) -> RangeKind | None:
    """The kind of the range with this text; None where it is not XLA's."""
    if text.startswith("Thunk:"):
        return THUNK
    if text.startswith("XlaModule:"):
        return MODULE
    return COMPILE if text.startswith(PREFIXES) else None


def thunk_instruction(text: str) -> str | None:
    """The HLO instruction in the text of a thunk range; None where it names none."""
    return _last_field(text, "hlo_op") or None


def module_key(text: str) -> ModuleKey | None:
    """The module in the text of a module range, without program id where autotuning ran it; None where unreadable."""
    name = _last_field(text, "hlo_module")
    if not name:
        return None
    digits = _last_field(text, "program_id") or ""
    return ModuleKey(name, int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None)


def kernel_instruction(kernel: str) -> str | None:
    """The instruction that XLA named a kernel of its own after: ``loop_add_fusion_3`` is of ``loop_add_fusion.3``.

    None for kernels of libraries. XLA replaces ``.`` and ``-`` of the fusion's name by ``_``
    (`xla/service/llvm_ir/llvm_util.cc`, SanitizeFunctionName); fusions are numbered with dots.
    """
    if not _XLA_KERNEL.match(kernel):
        return None
    return _KERNEL_NUMBER.sub(lambda found: found.group().replace("_", "."), kernel)


def _last_field(text: str, key: str) -> str | None:
    """The value of the last ``key=value`` of ``…#a=b,key=value,c=d#``; fields are preceded by ``#`` or ``,``."""
    at = max(text.rfind(f"#{key}="), text.rfind(f",{key}="))
    if at < 0:
        return None
    value = text[at + len(key) + 2 :].partition("#")[0].partition(",")[0]
    return value.strip().lstrip("%")
