"""A measured step by layer of the program and by source line, and how much of the GPU's peak it uses."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pgle.analyze.work import Work
from pgle.costs.profile.value import has_remat
from pgle.xla.hardware import Hardware
from pgle.xla.hlo.module import Instruction, Module


class Phase(StrEnum):
    """Of training, as JAX writes its transformations into ``op_name``."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REMATERIALISED = "rematerialised"
    OPTIMIZER = "optimizer"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Ran:
    """What ran in a step, as layers count it."""

    instruction: Instruction  # of the final module
    us: float  # time of all its executions on the GPU; 0 of collectives
    exposed_us: float  # of collectives, the part that no compute overlaps
    count: float  # executions in a step
    work: Work | None = None  # of one execution; None of collectives


@dataclass(frozen=True, slots=True)
class Layer:
    """Instructions of one part of the program."""

    name: str  # scopes, ``decoder/layers/mlp``; or file and line
    phase: str  # empty in tables over all phases
    us: float  # GPU time in a step, a sum of kernels
    exposed_us: float  # of its collectives
    instructions: int  # how many
    flops: float  # of matrix products, in a step
    bytes: float  # moved in a step
    roofline_us: float | None  # what the same would take at the GPU's peaks; None without hardware
    source: str = ""  # file and line of the costliest instruction; empty where unknown


@dataclass(frozen=True)
class Layers:
    """A step by parts of the program."""

    scopes: tuple[Layer, ...]  # by scope and phase, the costliest first
    lines: tuple[Layer, ...]  # by file and line, that with most GPU time first
    # model flops utilisation: what forward and backward compute, by the GPU's peak in the time of the step
    mfu: float | None = None
    hfu: float | None = None  # the same with what is computed again by rematerialisation

    def phase_us(self, phase: Phase) -> float:
        """GPU time of a phase."""
        return sum(layer.us for layer in self.scopes if layer.phase == phase)


def find_layers(module: Module, ran: Sequence[Ran], step_us: float, hardware: Hardware | None) -> Layers:
    """Group what ran by scope and source line.

    Args:
        ran: in a step, each instruction once.
    """
    phases = phases_of(module)
    work = {item.instruction.name: item.work for item in ran if item.work is not None}

    def group(key: Mapping[str, tuple[str, str]]) -> tuple[Layer, ...]:
        groups: dict[tuple[str, str], list[Ran]] = defaultdict(list)
        for item in ran:
            groups[key[item.instruction.name]].append(item)
        found = [_layer(name, phase, items, work, sources, hardware) for (name, phase), items in groups.items()]
        return tuple(sorted(found, key=lambda layer: (-layer.us - layer.exposed_us, layer.name, layer.phase)))

    names = {item.instruction.name: described(module, item.instruction) for item in ran}
    sources = {name: item.source for name, item in names.items()}
    phase_of = {name: phases.get(name, Phase.OTHER) for name in names}
    again = {name for name, phase in phase_of.items() if phase == Phase.REMATERIALISED}
    computed = [(item, item.work) for item in ran if item.work is not None]
    return Layers(
        scopes=group({name: (scope_of(item.op_name), phase_of[name]) for name, item in names.items()}),
        lines=tuple(sorted(group({name: (source, "") for name, source in sources.items()}), key=lambda line: -line.us)),
        mfu=_utilisation([row for row in computed if row[0].instruction.name not in again], step_us, hardware),
        hfu=_utilisation(computed, step_us, hardware),
    )


def _layer(
    name: str,
    phase: str,
    items: Sequence[Ran],
    work: Mapping[str, Work],
    sources: Mapping[str, str],
    hardware: Hardware | None,
) -> Layer:
    done = [(item, work[item.instruction.name]) for item in items if item.instruction.name in work]
    return Layer(
        name=name,
        phase=phase,
        us=sum(item.us for item in items),
        exposed_us=sum(item.exposed_us for item in items),
        instructions=len(items),
        flops=sum(item.count * each.flops for item, each in done),
        bytes=sum(item.count * each.bytes for item, each in done),
        roofline_us=None if hardware is None else sum(item.count * each.roofline_us(hardware) for item, each in done),
        source=sources[max(items, key=lambda item: item.us + item.exposed_us).instruction.name],
    )


def _utilisation(computed: Sequence[tuple[Ran, Work]], step_us: float, hardware: Hardware | None) -> float | None:
    if hardware is None or step_us <= 0:
        return None
    return sum(item.count * work.flops / work.peak_tflops(hardware) for item, work in computed) / 1e6 / step_us


def described(module: Module, instruction: Instruction) -> Instruction:
    """What says where an instruction comes from: itself, or of one without ``op_name`` what it wraps or fuses."""
    if instruction.op_name:
        return instruction
    inner = (item for name in instruction.called if name in module.computations and instruction.opcode != "while"
             for item in reversed(module.computations[name].instructions))  # fmt: skip
    return next((item for item in inner if "/" in item.op_name), instruction)


def phases_of(module: Module) -> dict[str, Phase]:
    """The phase of every instruction that is scheduled.

    Read off ``op_name``; an instruction without one (copies, collectives that XLA made) is of its operand's phase, what
    is outside of differentiation and needs gradients is the optimizer's. Without gradients all is forward.
    """
    found: dict[str, Phase] = {}
    for name in reversed(module.scheduled):  # callers after callees: a body's own names come from op_name alone
        for item in module.computations[name].instructions:
            found[item.name] = _phase(described(module, item).op_name, item, found)
    counts = Counter(found.values())
    if not counts[Phase.BACKWARD]:
        return dict.fromkeys(found, Phase.FORWARD)
    return found


def _phase(op_name: str, item: Instruction, found: Mapping[str, Phase]) -> Phase:
    if has_remat(item.name) or "rematted_computation" in op_name:
        return Phase.REMATERIALISED
    if "transpose(" in op_name:
        return Phase.BACKWARD
    if "jvp(" in op_name:
        return Phase.FORWARD
    before = [found[name] for name in item.operands if name in found]
    if "/" not in op_name:
        return next((phase for phase in before if phase != Phase.OTHER), Phase.OTHER)
    after = (Phase.BACKWARD, Phase.REMATERIALISED, Phase.OPTIMIZER)
    return Phase.OPTIMIZER if any(phase in after for phase in before) else Phase.OTHER


_STRUCTURE = frozenset(
    ("while", "body", "cond", "closed_call", "core_call", "eval_jaxpr", "checkpoint", "rematted_computation", "remat",
     "remat2", "shard_map", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "scan", "branch_0_fun",
     "branch_1_fun", "main", "pjit")
)  # fmt: skip
"""Parts of ``op_name`` that JAX adds and a program does not name."""

_WRAPPED = re.compile(r"(\w+)\((.*)\)$")


def scope_of(op_name: str) -> str:
    """``decoder/mlp/wo`` of ``jit(step)/jit(main)/transpose(jvp(decoder))/while/body/mlp/wo/dot_general[…]``."""
    parts = op_name.partition("[")[0].split("/")
    parts = parts[1:] if parts[0].startswith(("jit(", "pjit(")) else parts
    return "/".join(scope for part in parts[:-1] if (scope := _scope(part)) and scope not in _STRUCTURE)


def _scope(part: str) -> str:
    wrapped = _WRAPPED.match(part)
    if wrapped is None:
        return part
    name, inner = wrapped.groups()
    return "" if name in ("jit", "pjit") and (inner.startswith("_") or inner == "main") else _scope(inner)


def folded(layers: Sequence[Layer], most: int) -> tuple[tuple[str, tuple[Layer, ...]], ...]:
    """The layers in at most `most` groups, by name: numbers as ``*``, the costliest scope split while there is room.

    Args:
        layers: by scope and phase.
        most: groups.
    """
    groups: dict[tuple[str, ...], list[Layer]] = {(): list(layers)}
    while True:
        for path in sorted(groups, key=lambda path: -_total_us(groups[path])):
            inner = _split(path, groups[path])
            if inner != {path: groups[path]} and len(groups) - 1 + len(inner) <= most:
                groups = {other: items for other, items in groups.items() if other != path} | inner
                break
        else:
            named = [("/".join(filter(None, path)), tuple(items)) for path, items in groups.items()]
            return tuple(sorted(named, key=lambda group: -_total_us(group[1])))


def _split(path: tuple[str, ...], layers: Sequence[Layer]) -> dict[tuple[str, ...], list[Layer]]:
    """By the next scope; what has none is of the path itself, which ends with an empty name then."""
    found: dict[tuple[str, ...], list[Layer]] = defaultdict(list)
    for layer in layers:
        parts = re.sub(r"\d+", "*", layer.name).split("/")
        found[path if path[-1:] == ("",) else (*path, *(parts[len(path) : len(path) + 1] or ("",)))].append(layer)
    return dict(found)


def _total_us(layers: Iterable[Layer]) -> float:
    return sum(layer.us + layer.exposed_us for layer in layers)


def short_source(source: str) -> str:
    """``attentions.py:288`` of ``/opt/maxtext/MaxText/layers/attentions.py:288``."""
    return source.rpartition("/")[2]
