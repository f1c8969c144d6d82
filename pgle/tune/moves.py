"""What can be changed: flags that move collectives, each as an axis along which the search walks.

The catalogue says which flags decide the scheduled program or its schedule, and which values to try. Which of them
can do anything follows from the program: combine thresholds where there is something to combine or to split, pipelining
where a loop holds collectives. What the compiling jaxlib does not know, or does by default, is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf, prod

from pgle.xla.collectives import is_done, result_shape, walk_collectives
from pgle.xla.flags.catalogue import KnownSetting, catalogue, known_in, release
from pgle.xla.flags.presets import preset
from pgle.xla.hlo.module import Computation, Instruction, Module
from pgle.xla.hlo.names import loops

Flags = Mapping[str, str]  # values by flag name, without dashes

MIB = 1 << 20
START_BYTES = 8 * MIB
"""Where thresholds start; two to five trials from here find nine tenths of the gain (simulated, five programs)."""
MOST_UNROLLED = 4_000  # instructions of a loop over all its iterations; 1,900 unrolled took jaxlib 0.12 8 CPU-s
PART = 0.1  # of all exposed time, from which on a kind that is combined is tried before others
TIGHT = 0.5  # part of the GPU's memory from which on the scheduler may give up overlap for memory
STREAMS = "xla_gpu_multi_streamed_windowed_einsum"
SPLIT = "xla_gpu_threshold_for_windowed_einsum_mib"
SPLIT_WITHOUT_GPU_SINCE = "0.11.2"
"""First release found to split matmuls when it compiles without a GPU; 0.7.2, 0.10.2 and 0.11.0 do not."""

_THRESHOLD = "_combine_threshold_bytes"
_ON = ("on", "true")
ALL = "all"  # for `Axis.kind`: what moves every kind of collective at once comes first
LOOPS = "loops"  # for `Axis.kind`: what copies bodies of loops that hold collectives, of whatever kind
PRESET = "fsdp"  # what others recommend if a loop holds collectives: a start that the search has to beat


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing to change."""

    name: str  # in words
    kind: str  # the collective whose exposed time it is about; `ALL`, `LOOPS`; or empty: none in particular
    settings: tuple[Flags, ...]  # flag values to try, each on top of the best so far, in this order
    number: str = ""  # the flag whose value is halved and doubled, on as long as that helps; empty if absent
    parts: bool = False  # whether it splits combined collectives


def axes(module: Module, jaxlib: str, given: Collection[str], memory_share: float = 0.0) -> tuple[Axis, ...]:
    """The axes of a program.

    Args:
        module: scheduled, without any of these flags.
        jaxlib: that compiles.
        given: names of flags that the user has set; they stay.
        memory_share: part of the GPU's memory that the program needs.
    """
    program, known = _Facts.of(module, memory_share), catalogue()
    found: list[Axis] = []
    taken = {*given, *(known[name].use for name in given if name in known)}
    for setting in known.values():
        current = setting.use and known_in(setting.use, jaxlib)  # its newer name is tried instead
        if current or {setting.name, setting.use} & taken or not setting.known_in(jaxlib):
            continue
        values = [value for value in setting.tries if value != setting.default(jaxlib)]
        if values and program.has(setting, jaxlib):
            found.append(program.axis(setting, values, taken))
    return (*_preset(program, jaxlib, taken), *_together(found), *found)


@dataclass(frozen=True)
class _Facts:
    """What decides which axes do anything."""

    kinds: Mapping[str, int]  # of collectives, each with how many there are
    looped: frozenset[str]  # those inside loops when XLA pipelines loops
    unrolled: float  # instructions over all iterations of the longest loop that holds a collective
    # by kind and computation, bytes and number of tensors of each collective
    sizes: Mapping[tuple[str, str], list[tuple[int, int]]]
    joined: frozenset[tuple[str, str]]  # of these, where a threshold can join or part something
    opcodes: frozenset[str]  # of all instructions
    memory_share: float  # part of the GPU's memory that it needs

    @staticmethod
    def of(module: Module, memory_share: float) -> _Facts:
        kinds: Counter[str] = Counter()
        looped, unrolled = set(), 0.0
        sizes: dict[tuple[str, str], list[tuple[int, int]]] = {}
        names: dict[tuple[str, str], set[str]] = {}
        for item, kind in walk_collectives(module):
            if is_done(item):
                continue
            kinds[kind] += 1
            size = (result_shape(module, item).size_bytes, _tensors_of(module, item))
            sizes.setdefault((kind, item.computation), []).append(size)
            names.setdefault((kind, item.computation), set()).add(item.name)
            around = loops(module, item.name)
            if around:
                looped.add(kind)
                inside = len(module.computations[item.computation].instructions)
                unrolled = max(unrolled, inside * prod(count or inf for _, count in around))
        if "reduce-scatter" in looped:  # XLA pipelines these as all-reduces, before it joins each with its slice
            looped.add("all-reduce")
        joined = frozenset(
            place
            for place, those in names.items()
            if any(count > 1 for _, count in sizes[place]) or _are_apart(module.computations[place[1]], those)
        )
        opcodes = frozenset(item.opcode for item in module.walk())
        return _Facts(kinds, frozenset(looped), unrolled, sizes, joined, opcodes, memory_share)

    def has(self, setting: KnownSetting, jaxlib: str) -> bool:
        """Whether the program has what the setting is about."""
        among = self.looped if setting.where == "loop" else self.kinds
        if setting.about and setting.about not in among:
            return False
        if setting.name.endswith(_THRESHOLD):
            return any(kind == setting.about for kind, _ in self.joined)
        return {
            "": True,
            "loop": bool(self.looped),
            "short loop": 0 < self.unrolled <= MOST_UNROLLED,
            "several": sum(self.kinds.values()) > 1,
            "copies": "copy-start" in self.opcodes,
            "product": release(jaxlib) >= release(SPLIT_WITHOUT_GPU_SINCE) and bool(self.kinds),
            "tight memory": self.memory_share > TIGHT,
        }[setting.where]

    def axis(self, setting: KnownSetting, values: list[str], taken: Collection[str]) -> Axis:
        """The axis of a setting, next to flags that the user has set."""
        if setting.name.endswith(_THRESHOLD):
            start = {setting.name: str(self.start_bytes(setting.about))}
            return Axis(
                f"{setting.about} combined to", setting.about, (start,), setting.name, self.is_combined(setting.about)
            )
        name = setting.name.removeprefix("xla_gpu_")
        name = name.removeprefix("experimental_")
        # On several streams XLA asks its autotuner, which has no GPU here.
        also = {STREAMS: "false"} if setting.name == SPLIT and STREAMS not in taken else {}
        kind = setting.about or (LOOPS if setting.where.endswith("loop") else "")
        return Axis(name, kind, tuple({setting.name: value, **also} for value in values))

    def is_combined(self, kind: str) -> bool:
        """Whether a collective of a kind carries several tensors."""
        return any(count > 1 for (other, _), sizes in self.sizes.items() if other == kind for _, count in sizes)

    def start_bytes(self, kind: str) -> int:
        """The threshold that is tried first; where nothing is combined, the size of two of the smallest together."""
        groups = [sizes for (other, _), sizes in self.sizes.items() if other == kind and len(sizes) > 1]
        if self.is_combined(kind):
            return START_BYTES
        pair = min((sum(sorted(size for size, _ in sizes)[:2]) for sizes in groups), default=0)
        return max(START_BYTES, 1 << max(pair - 1, 0).bit_length())


def _are_apart(computation: Computation, names: Collection[str]) -> bool:
    """Whether two of these instructions do not wait for each other: only such may become one."""
    behind: dict[str, int] = {}
    seen = 0
    for item in computation.instructions:
        before = 0
        for operand in item.operands:
            before |= behind.get(operand, 0)
        if item.name in names:
            if before.bit_count() < seen:
                return True
            before |= 1 << seen
            seen += 1
        behind[item.name] = before
    return False


def _tensors_of(module: Module, collective: Instruction) -> int:
    """How many tensors a collective carries: as a tuple, or put behind each other before it (``all-reduce``)."""
    elements = result_shape(module, collective).elements
    source = next((module.instructions.get(name) for name in collective.operands), None)
    if elements or source is None:
        return max(len(elements), 1)
    inner = next((module.computations[name].root for name in source.called if source.opcode == "fusion"), source.name)
    root = module.instructions[inner]
    return len(root.operands) if root.opcode == "concatenate" else 1


def _together(found: Iterable[Axis]) -> Iterable[Axis]:
    """What only helps together: all pipelining, and all of it with two copies of each loop body."""
    on = [(axis, axis.settings[0]) for axis in found if set(axis.settings[0].values()) <= set(_ON)]
    pipelined = {name: value for axis, setting in on if axis.kind not in ("", LOOPS) for name, value in setting.items()}
    if len(pipelined) > 1:
        yield Axis("all pipelining", ALL, (pipelined,))
    double = {name: value for axis, setting in on for name, value in setting.items() if "double_buffering" in name}
    if pipelined and double:
        yield Axis("all pipelining and two copies of the loop body", ALL, ({**pipelined, **double},))


def _preset(program: _Facts, jaxlib: str, taken: Collection[str]) -> Iterable[Axis]:
    """The preset's flags that decide the scheduled program, for kinds that the program has, without the user's own."""
    known, looped = catalogue(), program.looped
    flags = {
        flag.name: flag.value
        for flag in preset(PRESET, jaxlib).flags
        if flag.value and flag.name in known and known[flag.name].stage == "program" and flag.name not in taken
        if known[flag.name].about in ("", *program.kinds, *looped)
    }
    if flags and looped:
        yield Axis(f"preset {PRESET}", ALL, (flags,))


def by_exposure(found: Iterable[Axis], exposed: Mapping[str, float]) -> list[Axis]:
    """Axes about all kinds first, then in order of the exposed time, by kind, that they are about; about none last.

    What takes combined collectives apart, where a good part of that time is theirs, comes before other kinds: they
    begin when the last of what they carry is there, and nothing of it can be used before all of it is.
    """
    many = PART * sum(exposed.values())
    apart = {axis.kind for axis in found if axis.parts and exposed.get(axis.kind, 0.0) >= many}
    return sorted(
        found,
        key=lambda axis: (axis.kind not in (ALL, LOOPS), axis.kind not in apart, -exposed.get(axis.kind, 0.0)),
    )
