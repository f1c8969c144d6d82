"""A program's module at a size that no machine captures, from the same module at three sizes that one does.

A program that is the same at every size differs only in numbers: shapes, parts of a mesh, constants. A number may be
the same, grow with the devices (``a·N + b``), or shrink with them (``c/N``). Two sizes say which; the third must agree.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache, partial
from itertools import zip_longest
from math import isfinite

from pgle.scale.plan import UnfitError

SIZES = 3
"""Captures that a module is grown from: each half of the next."""

ROUNDED = Fraction(1, 200)
"""Of a constant: bfloat16 is printed with its rounding, 8 bits. No schedule follows from a constant."""

_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")

_BITS = re.compile(r"(?<=dense<)0x([0-9A-F]+)(?=> : tensor<(?:\d+x)*(bf16|f16|f32|f64)>)")
"""A constant that MLIR prints by its bits, as six digits would round it."""

_FORMATS = {"bf16": ">f", "f16": ">e", "f32": ">f", "f64": ">d"}


def bases(devices: int, most: int, hosts_of: int) -> tuple[int, ...]:
    """The sizes to capture for one of so many devices, the smallest first.

    Args:
        devices: that are asked.
        most: that can be captured.
        hosts_of: devices of a host, which has to be full.

    Raises:
        UnfitError: halving it does not lead to full hosts.
    """
    largest = devices
    while largest > most and not largest % 2:
        largest //= 2
    found = tuple(largest >> shift for shift in reversed(range(SIZES)))
    if largest > most or found[0] % hosts_of or found[0] << (SIZES - 1) != largest:
        raise UnfitError(f"{devices} GPUs are more than the {most} of a capture, and halves of them are no full hosts")
    return found


def grown(modules: Mapping[int, str], devices: int) -> str:
    """StableHLO at a size, grown from smaller sizes.

    Args:
        modules: the text at each of `SIZES` sizes.
        devices: the size wanted.

    Raises:
        UnfitError: they differ in more than numbers, or a number follows no rule.
    """
    sizes = sorted(modules)
    split = [_NUMBER.split(_BITS.sub(_decimal, modules[size])) for size in sizes]
    words = [part[0::2] for part in split]
    if words.count(words[0]) < len(words):
        raise UnfitError(f"{_place(words)} of its module is another program at {', '.join(map(str, sizes))} GPUs")
    rule = cache(partial(_at, devices, sizes))  # a module holds few different numbers, each thousands of times
    made = [rule(now) for now in zip(*(part[1::2] for part in split), strict=True)]
    return "".join(word + number for word, number in zip(words[0], [*made, ""], strict=True))


def _decimal(match: re.Match[str]) -> str:
    bits, kind = bytes.fromhex(match[1]), match[2]
    value = struct.unpack(_FORMATS[kind], bits + bytes(2) if kind == "bf16" else bits)[0]
    return f"{value:.9E}" if isfinite(value) else match[0]


def _at(devices: int, sizes: Sequence[int], texts: tuple[str, ...]) -> str:
    """The number at a size by the rule that its values follow."""
    if texts.count(texts[0]) == len(texts):
        return texts[0]
    values = [Fraction(text) for text in texts]
    whole = all(text.lstrip("-").isdigit() and str(int(text)) == text for text in texts)
    near = Fraction(0) if whole else ROUNDED
    slope = (values[1] - values[0]) / (sizes[1] - sizes[0])
    shares = [value * size for value, size in zip(values, sizes, strict=True)]
    if abs(values[2] - values[1] - slope * (sizes[2] - sizes[1])) <= near * abs(values[2]):
        found = values[2] + slope * (devices - sizes[2])
    elif max(shares) - min(shares) <= near * abs(shares[2]):
        found = shares[2] / devices
    else:
        raise UnfitError(f"{', '.join(texts)} at {', '.join(map(str, sizes))} GPUs follow no rule")
    if whole and found.denominator != 1:
        raise UnfitError(f"{texts[2]} at {sizes[2]} GPUs cannot be divided at {devices}")
    return str(found) if whole else f"{float(found):.9E}"


def _place(modules: list[list[str]]) -> str:
    """The first line on which modules differ in words."""
    lines = zip_longest(*("#".join(words).splitlines() for words in modules))
    return f"line {next(at for at, line in enumerate(lines, 1) if line.count(line[0]) < len(line))}"
