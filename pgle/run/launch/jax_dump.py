"""What a module that jax dumped says of itself: text of StableHLO, in part HLO as text or protobuf."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pgle.files import read_bytes

T = TypeVar("T")

_PRODUCT = re.compile(rb"\bdot_general\b| dot\(|\x12\x03dot|\bconvolution\b")
"""A matrix product in StableHLO, in text of HLO and in its protobuf, whose second field is the opcode."""


_COLLECTIVE = re.compile(
    rb"stablehlo\.(?:all_reduce|all_gather|reduce_scatter|all_to_all|collective_permute|collective_broadcast)\b"
    rb"|[ \x0a-\x14](?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)\b[^-]"
)
"""The same of a collective."""

_SPLIT = re.compile(rb'sdy\.sharding<@[^>]*\{"|mhlo\.sharding = "\{devices=\[')
"""An argument that is split over devices, in Shardy's notation or GSPMD's."""


def once(read: Callable[[Path], T]) -> Callable[[Path], T]:
    """The same function, which reads a file again only once it has changed: a program that is waited for is looked at
    several times a second."""
    known: dict[Path, tuple[tuple[int, int], T]] = {}

    def found(module: Path) -> T:
        now = module.stat()
        state = now.st_mtime_ns, now.st_size
        if known.get(module, ((0, 0),))[0] != state:
            known[module] = state, read(module)
        return known[module][1]

    return found


@once
def multiplies(module: Path) -> bool:
    """Whether a dump, StableHLO or HLO, as text or protobuf, holds a matrix product or a convolution."""
    return _PRODUCT.search(read_bytes(module)) is not None


@once
def communicates(module: Path) -> bool:
    """Whether a dump holds collectives, or makes XLA insert some: jax's multiplies or sums sharded arguments."""
    data = read_bytes(module)
    if _COLLECTIVE.search(data):
        return True
    main = next((line for line in data.splitlines() if b" @main(" in line), b"")
    taken = main.partition(b") -> ")[0]
    return bool(_SPLIT.search(taken)) and (b"stablehlo.reduce" in data or multiplies(module))


@once
def is_training(module: Path) -> bool:
    """Whether a dump of jax multiplies matrices and returns half of what it takes, by type: parameters or gradients."""
    with module.open(errors="replace") as lines:
        main = next((line for line in lines if " @main(" in line), "")
    taken, returned = (Counter(re.findall(r"tensor<[^>]+>", types)) for types in main.partition(") -> ")[::2])
    return 2 * (taken & returned).total() >= taken.total() > 0 and multiplies(module)


@once
def devices_of(module: Path) -> int | None:
    """For how many devices a dump of jax is; None where it does not say."""
    with module.open(errors="replace") as lines:
        head = next((line for line in lines if line.startswith("module @")), "")
    found = re.findall(r"mhlo\.num_(?:partitions|replicas) = (\d+)", head)
    return math.prod(map(int, found)) if found else None


_ARGUMENT = re.compile(r"%arg\d+: (?P<type>tensor<[^>]*>)(?P<rest>.*?)(?=, %arg\d+: |\) -> |\Z)")
_SHARDING = re.compile(r'sdy\.sharding = #sdy\.sharding<@[^,]*, (\[[^\]]*\])|mhlo\.sharding = "(\{[^"]*\})"')
_LOCATION = re.compile(r'loc\((?:"([^"]*)"|(#loc\d*))')
_CONSTANT = re.compile(rb"stablehlo\.constant [^\n]{0,99}[^\n]*? : tensor<((?:\d+x)+)([a-zA-Z]+)(\d+)")


@dataclass(frozen=True)
class Argument:
    """An argument of a module."""

    name: str  # as the program calls it, ``params['w1']``; ``argument 3`` if the dump does not say
    type: str  # ``tensor<1024x4096xf32>``
    sharding: str  # in Shardy's or GSPMD's notation; empty: none


@once
def arguments(module: Path) -> tuple[Argument, ...]:
    """The arguments of a dump of jax, in their order."""
    names, main = {}, ""
    with module.open(errors="replace") as lines:
        for line in lines:
            if line.startswith("#loc") and (found := re.match(r'(#loc\d*) = loc\("([^"]*)"', line)):
                names[found[1]] = found[2]
            if " @main(" in line:
                main = line.partition(") -> ")[0]
    taken = []
    for number, part in enumerate(_ARGUMENT.finditer(main)):
        location, sharding = _LOCATION.search(part["rest"]), _SHARDING.search(part["rest"])
        name = (location[1] or names.get(location[2] or "")) if location else None
        taken.append(
            Argument(name or f"argument {number}", part["type"], (sharding[1] or sharding[2] or "") if sharding else "")
        )
    return tuple(taken)


@once
def constant_bytes(module: Path) -> int:
    """Bytes of the constants that a dump of jax holds, of more than one element each."""
    found = _CONSTANT.findall(read_bytes(module))
    return sum(math.prod(map(int, shape[:-1].split(b"x"))) * max(int(bits), 8) // 8 for shape, _, bits in found)
