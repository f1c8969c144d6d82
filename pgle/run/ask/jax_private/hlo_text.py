"""What an HLO module says of itself that its compile options must repeat: devices, shardings, partitioned or not.

Read off HLO text with a few expressions, since the modules have a hundred thousand lines and this needs no parser.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from pgle.xla.collectives import KINDS

_INSTRUCTION = {2: {40: None}}  # HloComputationProto.instructions, HloInstructionProto.sharding
SHARDING_FIELDS = {3: _INSTRUCTION, 12: None, 14: None}
"""GSPMD shardings in an HloModuleProto: of instructions, of the output, of the parameters."""

# How many devices a sharding spans, in its notations: devices=[4,1]<=[4], mesh['d'=4], sdy.mesh<["d"=4]>
_TILING = re.compile(r"\bdevices=\[([0-9,]+)\]")
_MESH = re.compile(r"""\bmesh(?:\[|<\[)((?:(?:'|"|\\\\?22|\\\\?")[^'"\\]*(?:'|"|\\\\?22|\\\\?")=\d+(?:, ?)?)+)\]""")

_OPCODES = (*(kind.name for kind in KINDS.values() if kind.primitives), "partition-id", "replica-id")
"""What only a partitioned program holds; sends and receives, which no primitive of JAX is, may be the host's."""
_COLLECTIVE = re.compile(rf"^.* (?:{'|'.join(_OPCODES)})(?:-start)?\(.*$", re.MULTILINE)
_IOTA_GROUPS = re.compile(r"replica_groups=\[([0-9,]+)\]<=")
_LISTED_GROUPS = re.compile(r"(?:replica_groups|source_target_pairs)=\{(\{[0-9,{}]*\})\}")
_MANUAL = re.compile(
    r"SPMDFullToShardShape|SPMDShardToFullShape|xla\.sdy\.(?:GlobalToLocalShape|LocalToGlobalShape|manual)"
    r"|sharding=\{[^}]*\bmanual\b"
)
"""Parts of a program that its author partitioned by hand (shard_map), while the rest waits for the partitioner."""


@dataclass(frozen=True)
class Traits:
    """What the compiler needs of a program besides its code."""

    name: str  # of the module, ``jit_train_step``
    num_partitions: int  # SPMD partitions
    num_replicas: int
    is_partitioned: bool  # the SPMD partitioner has run on it already and must not run again
    shardy: bool  # True where shardings are Shardy's, False for GSPMD annotations
    propagate_to_parameters: tuple[bool, ...]  # per parameter, whether the compiler may choose its sharding
    propagate_to_output: tuple[bool, ...]  # the same per output


@dataclass(frozen=True)
class HloFacts(Traits):
    """Those of an HLO module; `in_both_notations`: its shardings are Shardy's and GSPMD's, side by side."""

    is_scheduled: bool
    in_both_notations: bool


def read_facts(text: str, default_devices: int) -> HloFacts:
    """The facts of one module.

    Args:
        text: HLO text.
        default_devices: partitions where nothing in the module says how many there are.
    """
    header = text[: text.find("\n")]
    collectives = _COLLECTIVE.findall(text)
    shardy = "xla.sdy" in text
    named = re.search(r"sharding=\{+mesh\[", text) is not None  # as jax 0.12 writes Shardy's shardings
    is_partitioned = bool(collectives) and not shardy and _MANUAL.search(text) is None
    replicas = _number(header, "replica_count")
    if replicas is None:  # a collective without a channel is one of replicas (pmap)
        replicas = _group_devices([line for line in collectives if "channel_id=" not in line]) or 1
    partitions = _number(header, "num_partitions")
    if partitions is None:
        partitions = _sharded_devices(text) or _group_devices([line for line in collectives if "channel_id=" in line])
    name = re.match(r"HloModule ([^\s,]+)", header)
    return HloFacts(
        name=name[1] if name else "module",
        num_partitions=partitions or (default_devices if replicas == 1 else 1),
        num_replicas=replicas,
        is_partitioned=is_partitioned,
        is_scheduled="is_scheduled=true" in header,
        shardy=shardy or named,
        in_both_notations=shardy,
        propagate_to_parameters=_flags(header, "parameters") or _free_parameters(text),
        propagate_to_output=_flags(header, "output") or _free_outputs(text),
    )


def _number(header: str, name: str) -> int | None:
    found = re.search(rf"\b{name}=(\d+)", header)
    return int(found[1]) if found else None


def _flags(header: str, of: str) -> tuple[bool, ...]:
    found = re.search(rf"allow_spmd_sharding_propagation_to_{of}=\{{([a-z,]*)\}}", header)
    return tuple(word == "true" for word in found[1].split(",")) if found else ()


def _free_parameters(text: str) -> tuple[bool, ...]:
    """Per parameter of the entry computation, whether it has no sharding of its own."""
    lines = re.findall(r"^.* parameter\((\d+)\)(.*)$", _entry(text), re.MULTILINE)
    return tuple("sharding=" not in rest for _, rest in sorted(lines, key=lambda line: int(line[0])))


def _free_outputs(text: str) -> tuple[bool, ...]:
    """Whether the outputs have no sharding: one word for all of them."""
    root = re.search(r"^\s*ROOT .*$", _entry(text), re.MULTILINE)
    return (root is not None and "sharding=" not in root[0],)


def _entry(text: str) -> str:
    start = text.find("\nENTRY ")
    return text[start : text.find("\n}", start) + 1] if start >= 0 else ""


def _sharded_devices(text: str) -> int | None:
    """Devices of the largest tiling or mesh, or None where nothing is sharded."""
    tilings = [prod(map(int, found.split(","))) for found in set(_TILING.findall(text))]
    meshes = [prod(int(size) for size in re.findall(r"=(\d+)", found)) for found in set(_MESH.findall(text))]
    return max([*tilings, *meshes], default=None)


def _group_devices(lines: list[str]) -> int | None:
    """Devices that the replica groups of collectives span."""
    sizes = {prod(map(int, found.split(","))) for line in lines for found in _IOTA_GROUPS.findall(line)}
    listed = {found for line in lines for found in _LISTED_GROUPS.findall(line)}
    sizes |= {max(map(int, re.findall(r"\d+", found))) + 1 for found in listed if re.search(r"\d", found)}
    return max(sizes, default=None)
