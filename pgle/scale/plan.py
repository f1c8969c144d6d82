"""The sizes and variants of a program to try, its command line for each, and modules of larger
sizes.

No machine can capture a module for thousands of devices. So pgle grows it from the same program's
modules at three smaller sizes. These must differ only in numbers: shapes, parts of a mesh,
constants. A number may be constant, grow with the devices (``a·N + b``), or shrink with them
(``c/N``). Two sizes give the rule, and the third must agree.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import chain, product, zip_longest
from math import isfinite

from pgle.errors import UserError, suggestion
from pgle.scale.answer import ScaleRow

MOST_TRIALS = 200  # more are probably a typing error

SIZES = 3
"""A module is grown from so many captures. Each has half the devices of the next."""

ROUNDED = Fraction(1, 200)
"""Relative error that a constant may have, since MLIR prints bfloat16 rounded to 8 bits. No
schedule depends on a constant.
"""

_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)")

_BITS = re.compile(
    r"(?<=dense<)0x([0-9A-F]+)(?=> : tensor<(?:\d+x)*(bf16|f16|f32|f64)>)"
)
"""A constant that MLIR prints as bits, because six digits would round it."""

_FORMATS = {"bf16": ">f", "f16": ">e", "f32": ">f", "f64": ">d"}

_PLACE = re.compile(r"\{\{|\}\}|\{(\w+(?: *[*/] *\w+)*)\}", re.ASCII)
"""A placeholder: a name, or names and numbers that are multiplied and divided from left to right.
Two braces mean one literal brace.
"""

# braces around any other calculation
_SUM = re.compile(r"\{[\w *\/+%()-]+\}", re.ASCII)


class UnfitError(ValueError):
    """A size that is impossible for a program, because a division leaves a remainder."""


@dataclass(frozen=True, slots=True)
class SizeTrial:
    """One row to make."""

    devices: int  # GPUs
    per_host: int  # GPUs that share NVLink
    # (varied name, value), as the user wrote them
    values: tuple[tuple[str, str], ...] = ()
    file: str = ""  # a module that replaces the command
    digest: str = ""  # of that file's content
    unfit: str = ""  # why this size is impossible, if that is known beforehand

    @property
    def hosts(self) -> int:
        """Number of hosts, or NVLink domains. `topology` refuses a last one that is not full."""
        return -(-self.devices // self.per_host)

    @property
    def topology(self) -> str:
        """``SxHxD`` (slices, hosts, devices), a slice for each host.

        Raises:
            UnfitError: the last host would not be full.
        """
        if self.hosts == 1:
            return f"1x1x{self.devices}"
        if self.devices % self.per_host:
            raise UnfitError(
                f"{self.devices} GPUs do not fill hosts of {self.per_host}"
            )
        return f"{self.hosts}x1x{self.per_host}"

    @property
    def shown(self) -> dict[str, str]:
        """The value at this size, by varied name. A ``?`` marks a number that is impossible."""
        numbers = {"devices": str(self.devices), "hosts": str(self.hosts)}

        def value(match: re.Match[str]) -> str:
            try:
                return _filled(match[0], numbers)
            except (UnfitError, UserError, KeyError):
                return "?"

        return {name: _PLACE.sub(value, text) for name, text in self.values}

    @property
    def name(self) -> str:
        """A file name: ``64`` or ``64-mesh=fsdp8``, with the digest if there is one."""
        values = (f"{name}={value}" for name, value in self.values)
        words = filter(None, (str(self.devices), self.digest, *values))
        return re.sub(r"[^\w.=-]+", "_", "-".join(words))[:120]


def trials(
    devices: Sequence[int], per_host: int, varied: Mapping[str, Sequence[str]]
) -> tuple[SizeTrial, ...]:
    """Every size with every combination of values, in the order in which they were given.

    Raises:
        UserError: there are more than `MOST_TRIALS`, or two are the same.
    """
    combinations = product(devices, product(*varied.values()))
    found = [
        SizeTrial(count, per_host, tuple(zip(varied, values, strict=True)))
        for count, values in combinations
    ]
    if len(found) > MOST_TRIALS:
        remedy = f"{MOST_TRIALS} are the most; give fewer sizes or values"
        raise UserError(
            f"{len(found)} trials", where="--devices, --vary", remedy=remedy
        )
    if len({trial.name for trial in found}) < len(found):
        raise UserError(
            "two trials are the same",
            where="--devices, --vary",
            remedy="give each size and value once",
        )
    return tuple(found)


def fitting(
    wanted: Sequence[SizeTrial], name: str
) -> list[Generator[SizeTrial, ScaleRow, ScaleRow]]:
    """A bisection for each size and combination of other values. It finds the last value of a
    varied name that fits into memory.

    Args:
        wanted: the trials. Values of `name` must be ordered from least memory to most.
        name: the varied name.
    """
    found: dict[tuple[object, ...], list[SizeTrial]] = {}
    for trial in wanted:
        others = tuple(pair for pair in trial.values if pair[0] != name)
        found.setdefault((trial.devices, others), []).append(trial)
    return [_fitting(group, name) for group in found.values()]


def _fitting(
    group: Sequence[SizeTrial], name: str
) -> Generator[SizeTrial, ScaleRow, ScaleRow]:
    """Bisect. Yields the next trial to make, and expects its row. A row without a step counts as
    one that does not fit.

    Returns:
        The row of the last value that fits, else of the first value, with the memory of all values
        that were tried.
    """
    rows: dict[int, ScaleRow] = {}
    low = 0  # all values before it fit
    high = len(group)  # this value and all after it do not fit
    at = high - 1  # begin at the end, since most programs fit
    while low < high:
        rows[at] = row = yield group[at]
        is_fit = not row.failure and row.fits is not False
        low, high = (at + 1, high) if is_fit else (low, at)
        at = (low + high) // 2
    tried = {
        dict(group[at].values)[name]: row.memory_bytes
        for at, row in sorted(rows.items())
    }
    return replace(rows[low - 1 if low else 0], fitted=name, tried=tried)


def filled(words: Sequence[str], trial: SizeTrial) -> tuple[str, ...]:
    """The command line of a trial. Numbers and values replace ``{devices}``, ``{hosts}`` and varied
    names, also within varied values.

    Raises:
        UnfitError: a division leaves a remainder.
        UserError: a calculation has a value that is not a whole number.
        KeyError: a placeholder has no value; `check_names` refuses such a command before.
    """
    numbers = {"devices": str(trial.devices), "hosts": str(trial.hosts)}
    values = numbers | {name: _filled(value, numbers) for name, value in trial.values}
    return tuple(_filled(word, values) for word in words)


def check_names(words: Sequence[str], varied: Mapping[str, Sequence[str]]) -> None:
    """Check that the command uses every varied name, and that every placeholder has a value.

    Raises:
        UserError: it does not, or a varied name is one of pgle's own (``devices``, ``hosts``).
    """
    own = {"devices", "hosts"}
    if taken := own & set(varied):
        raise UserError(
            "is a name of pgle's own",
            where=f"--vary {min(taken)}=…",
            remedy="choose another name",
        )
    used = set[str]()
    for word in words:
        used |= _names_in(word, own | set(varied))
    for value in chain.from_iterable(varied.values()):
        used |= _names_in(value, own)
    unused = next((name for name in varied if name not in used), None)
    if unused is not None:
        raise UserError(
            "is not in the command",
            where=f"--vary {unused}",
            remedy=f"write {{{unused}}} in it",
        )


def _names_in(text: str, known: set[str]) -> set[str]:
    """The names in the placeholders of a text.

    Raises:
        UserError: a name is not known, or braces surround another calculation with a known one.
    """
    found = set[str]()
    for match in _PLACE.finditer(text):
        found.update(re.findall(r"[A-Za-z_]\w*", match[1] or ""))
    unknown = min(found - known, default=None)
    if unknown is not None:
        remedy = suggestion(unknown, known) or f"add --vary {unknown}=A,B"
        remedy += f"; for braces of your own write {{{{{unknown}}}}}"
        raise UserError("has no value", where=f"{{{unknown}}}", remedy=remedy)
    for wrong in _SUM.findall(_PLACE.sub("", text)):
        if not known.isdisjoint(re.findall(r"\w+", wrong)):
            remedy = "only * and / are worked out: {4*devices}, {batch/hosts}"
            raise UserError("is not a placeholder", where=wrong, remedy=remedy)
    return found


def _filled(text: str, values: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        return match[0][0] if match[1] is None else _worked_out(match[1], values)

    return _PLACE.sub(value, text)


def _worked_out(text: str, values: Mapping[str, str]) -> str:
    """The value of a placeholder: ``batch``, ``4*devices``, ``devices/8``."""
    first, *rest = re.split(r" *([*/]) *", text)
    if not rest:
        return values[first]
    result = _number(first, values)
    for sign, name in zip(rest[::2], rest[1::2], strict=True):
        number = _number(name, values)
        if sign == "/" and (not number or result % number):
            raise UnfitError(f"{{{text}}}: {result} is not divisible by {number}")
        result = result * number if sign == "*" else result // number
    return str(result)


def _number(name: str, values: Mapping[str, str]) -> int:
    text = values.get(name, name)
    if not text.isdigit():
        raise UserError(
            "is not a whole number",
            where=f"{{{name}}} = {text}",
            remedy="vary numbers where you calculate",
        )
    return int(text)


def bases(devices: int, most: int, hosts_of: int) -> tuple[int, ...]:
    """The sizes to capture for a module of `devices` devices, the smallest first.

    Args:
        most: the largest capture.
        hosts_of: devices of a host. Each capture has full hosts.

    Raises:
        UnfitError: no halving of `devices` gives such sizes.
    """
    largest = devices
    while largest > most and not largest % 2:
        largest //= 2
    found = tuple(largest >> shift for shift in reversed(range(SIZES)))
    if largest > most or found[0] % hosts_of or found[0] << (SIZES - 1) != largest:
        raise UnfitError(
            f"{devices} GPUs are more than the {most} of a capture, "
            "and halves of them do not fill hosts"
        )
    return found


def grown(modules: Mapping[int, str], devices: int) -> str:
    """Grow the StableHLO for `devices` devices.

    Args:
        modules: texts of the same program at `SIZES` smaller sizes, by number of devices.

    Raises:
        UnfitError: the texts differ in more than numbers, or a number follows no rule.
    """
    sizes = sorted(modules)
    split = [_NUMBER.split(_BITS.sub(_decimal, modules[size])) for size in sizes]
    words = [part[0::2] for part in split]
    if words.count(words[0]) < len(words):
        first = _first_unlike(words)
        counts = ", ".join(map(str, sizes))
        raise UnfitError(f"{first} of its module is another program at {counts} GPUs")
    # a module has few different numbers, but each of them thousands of times
    rule = cache(partial(_at, devices, sizes))
    numbers = (part[1::2] for part in split)
    made = [*map(rule, zip(*numbers, strict=True)), ""]
    pairs = zip(words[0], made, strict=True)
    return "".join(chain.from_iterable(pairs))


def _decimal(match: re.Match[str]) -> str:
    kind = match[2]
    bits = bytes.fromhex(match[1])
    if kind == "bf16":
        bits += bytes(2)
    (value,) = struct.unpack(_FORMATS[kind], bits)
    return f"{value:.9E}" if isfinite(value) else match[0]


def _at(devices: int, sizes: Sequence[int], texts: tuple[str, ...]) -> str:
    """The number for `devices` devices, by the rule that its values at other sizes follow.

    Raises:
        UnfitError: they follow no rule.
    """
    if texts.count(texts[0]) == len(texts):
        return texts[0]
    small, middle, large = map(Fraction, texts)
    small_at, middle_at, large_at = sizes
    whole = all(map(_is_whole, texts))
    near = Fraction(0) if whole else ROUNDED
    slope = (middle - small) / (middle_at - small_at)
    off = large - middle - slope * (large_at - middle_at)
    totals = (small * small_at, middle * middle_at, large * large_at)
    if abs(off) <= near * abs(large):
        found = large + slope * (devices - large_at)
    elif max(totals) - min(totals) <= near * abs(totals[-1]):
        found = totals[-1] / devices
    else:
        numbers = ", ".join(texts)
        counts = ", ".join(map(str, sizes))
        raise UnfitError(f"{numbers} at {counts} GPUs follow no rule")
    if whole and found.denominator != 1:
        what = f"{texts[-1]} at {large_at} GPUs cannot be divided at {devices}"
        raise UnfitError(what)
    return str(found) if whole else f"{float(found):.9E}"


def _is_whole(text: str) -> bool:
    """Whether a number is written as an integer."""
    return text.lstrip("-").isdigit() and str(int(text)) == text


def _first_unlike(modules: list[list[str]]) -> str:
    """The first line on which modules differ in more than numbers."""
    texts = ("#".join(words).splitlines() for words in modules)
    lines = enumerate(zip_longest(*texts), 1)
    unlike = (number for number, line in lines if line.count(line[0]) < len(line))
    return f"line {next(unlike)}"
