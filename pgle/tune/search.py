"""A search over flags: the axes of a program, coordinate descent along them, and the worlds that
judge a trial.

Axes: the catalogue lists the flags that change the program or its schedule, and the values to try.
The program decides which of them can matter. Combine thresholds need collectives to combine or to
split; pipelining needs a loop with collectives. pgle skips flags that the compiling jaxlib does not
know, and values that are its defaults.

Descent: the search moves along one axis at a time and keeps the best setting so far.

Worlds: a setting that wins by the likely costs can lose if costs differ a little. So pgle judges it
in many worlds, drawn with a fixed seed. They differ in costs (kernels of one shape together,
collectives of one kind together) and in the model: the fixed part of a collective's time, how much
collectives slow kernels, and the time of launches. Worlds come in opposite pairs: if one draws
above the likely value, the other draws below it. So the mean over worlds favours no setting.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from math import inf, prod
from random import Random

from pgle.costs.measure.contention import Contention, LaunchGaps
from pgle.schedule.predict import Prediction
from pgle.schedule.simulate import Op, Program, Stream, run_program
from pgle.worth import is_worth
from pgle.xla.async_opcodes import is_done
from pgle.xla.async_pairs import result_shape
from pgle.xla.collectives import walk_collectives
from pgle.xla.flags.catalogue import KnownSetting, catalogue, known_in, release
from pgle.xla.hlo.module import Computation, Instruction, Module
from pgle.xla.owners import loops

Flags = Mapping[str, str]  # values by flag name, without dashes

MIB = 1 << 20
START_BYTES = 8 * MIB
"""The first combine threshold. Two to five trials from here find nine tenths of the gain
(simulated, five programs).
"""
# most instructions of a loop over all iterations that XLA may unroll; jaxlib 0.12 took 8 CPU-s for
# 1,900
MOST_UNROLLED = 4_000
# a combined kind with at least this share of the exposed time is tried before other kinds
PART = 0.1
# share of the GPU's memory; above it the scheduler may trade overlap for memory
TIGHT = 0.5
STREAMS = "xla_gpu_multi_streamed_windowed_einsum"
SPLIT = "xla_gpu_threshold_for_windowed_einsum_mib"
SPLIT_WITHOUT_GPU_SINCE = "0.11.2"
"""First release that was seen to split matmuls when it compiles without a GPU. Releases 0.7.2,
0.10.2 and 0.11.0 do not.
"""

_THRESHOLD = "_combine_threshold_bytes"
_ON = ("on", "true")
ALL = "all"  # `Axis.kind` if it changes every kind of collective at once; tried first
# `Axis.kind` if it copies bodies of loops with collectives of any kind
LOOPS = "loops"


@dataclass(frozen=True, slots=True)
class Axis:
    """One flag, or a group of flags, that the search changes."""

    name: str  # in words
    # the kind of collective whose exposed time it changes, `ALL` or `LOOPS`; empty if none
    kind: str
    # flag values to try, each on top of the best setting so far, in this order
    settings: tuple[Flags, ...]
    # the flag whose value is halved and doubled as long as that helps; empty if there is none
    number: str = ""
    parts: bool = False  # whether it splits combined collectives


def axes(
    module: Module, jaxlib: str, given: Collection[str], memory_share: float = 0.0
) -> tuple[Axis, ...]:
    """The axes of a program. If a loop holds collectives, the first is the public recommendation
    for FSDP, which the search has to beat.

    Args:
        module: scheduled without any of these flags.
        jaxlib: release of the jaxlib that compiles.
        given: names of flags that the user has set. The search does not change them.
        memory_share: share of the GPU's memory that the program needs.
    """
    program = _Facts.of(module, memory_share)
    known = catalogue()
    found: list[Axis] = []
    together: dict[str, str] = {}
    taken = {*given, *(known[name].use for name in given if name in known)} - {""}
    for setting in known.values():
        # its newer name is tried instead
        current = setting.use and known_in(setting.use, jaxlib)
        if (
            current
            or {setting.name, setting.use} & taken
            or not setting.known_in(jaxlib)
        ):
            continue
        if setting.fsdp and setting.about in ("", *program.kinds, *program.looped):
            together[setting.name] = setting.fsdp
        values = [value for value in setting.tries if value != setting.default(jaxlib)]
        if values and program.has(setting, jaxlib):
            found.append(program.axis(setting, values, taken))
    preset = (
        [Axis("preset fsdp", ALL, (together,))] if together and program.looped else []
    )
    return (*preset, *_together(found), *found)


@dataclass(frozen=True)
class _Facts:
    """The facts about a program that decide which axes can change it."""

    kinds: Mapping[str, int]  # number of collectives by kind
    looped: frozenset[str]  # kinds inside loops when XLA pipelines loops
    # instructions over all iterations of the longest loop that holds a collective
    unrolled: float
    # (bytes, number of tensors) of each collective, by kind and computation
    sizes: Mapping[tuple[str, str], list[tuple[int, int]]]
    # keys of `sizes` where a threshold can combine or split something
    joined: frozenset[tuple[str, str]]
    opcodes: frozenset[str]  # of all instructions
    memory_share: float  # share of the GPU's memory that the program needs

    @staticmethod
    def of(module: Module, memory_share: float) -> _Facts:
        kinds: Counter[str] = Counter()
        looped = set[str]()
        unrolled = 0.0
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
                times = prod(count or inf for _, count in around)
                unrolled = max(unrolled, inside * times)
        # XLA pipelines these as all-reduces, before it joins each with its slice
        if "reduce-scatter" in looped:
            looped.add("all-reduce")
        joined = frozenset(
            place
            for place, those in names.items()
            if any(count > 1 for _, count in sizes[place])
            or _are_apart(module.computations[place[1]], those)
        )
        opcodes = frozenset(item.opcode for item in module.walk())
        return _Facts(
            kinds=kinds,
            looped=frozenset(looped),
            unrolled=unrolled,
            sizes=sizes,
            joined=joined,
            opcodes=opcodes,
            memory_share=memory_share,
        )

    def has(self, setting: KnownSetting, jaxlib: str) -> bool:
        """Whether the program has the collectives or loops that the setting changes."""
        among = self.looped if setting.where == "loop" else self.kinds
        if setting.about and setting.about not in among:
            return False
        if setting.name.endswith(_THRESHOLD):
            return any(kind == setting.about for kind, _ in self.joined)
        can_split = release(jaxlib) >= release(SPLIT_WITHOUT_GPU_SINCE)
        is_short = 0 < self.unrolled <= MOST_UNROLLED
        has_several = sum(self.kinds.values()) > 1
        has = {
            "": True,
            "loop": bool(self.looped),
            "short loop": is_short,
            "several": has_several,
            "copies": "copy-start" in self.opcodes,
            "product": can_split and bool(self.kinds),
            "tight memory": self.memory_share > TIGHT,
        }
        return has[setting.where]

    def axis(
        self, setting: KnownSetting, values: list[str], taken: Collection[str]
    ) -> Axis:
        """The axis of a setting.

        Args:
            values: to try, in order.
            taken: names of flags that the user has set.
        """
        if setting.name.endswith(_THRESHOLD):
            start = {setting.name: str(self.start_bytes(setting.about))}
            return Axis(
                f"{setting.about} combined to",
                setting.about,
                (start,),
                setting.name,
                self.is_combined(setting.about),
            )
        name = setting.name.removeprefix("xla_gpu_")
        name = name.removeprefix("experimental_")
        # With several streams XLA asks its autotuner, which has no GPU here.
        also = (
            {STREAMS: "false"} if setting.name == SPLIT and STREAMS not in taken else {}
        )
        kind = setting.about or (LOOPS if setting.where.endswith("loop") else "")
        return Axis(
            name, kind, tuple({setting.name: value, **also} for value in values)
        )

    def is_combined(self, kind: str) -> bool:
        """Whether a collective of a kind carries several tensors."""
        of_kind = (sizes for (other, _), sizes in self.sizes.items() if other == kind)
        return any(count > 1 for _, count in chain.from_iterable(of_kind))

    def start_bytes(self, kind: str) -> int:
        """The threshold to try first. If nothing is combined yet, it is large enough for the two
        smallest collectives together.
        """
        groups = [
            sizes
            for (other, _), sizes in self.sizes.items()
            if other == kind and len(sizes) > 1
        ]
        if self.is_combined(kind):
            return START_BYTES
        pairs = (sorted(size for size, _ in sizes)[:2] for sizes in groups)
        pair = min(map(sum, pairs), default=0)
        return max(START_BYTES, 1 << max(pair - 1, 0).bit_length())


def _are_apart(computation: Computation, names: Collection[str]) -> bool:
    """Whether two of these instructions are independent. XLA can combine only those."""
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
    """How many tensors a collective carries: as a tuple, or concatenated before it
    (``all-reduce``).
    """
    elements = result_shape(module, collective).elements
    source = next((module.instructions.get(name) for name in collective.operands), None)
    if elements or source is None:
        return max(len(elements), 1)
    inner = next(
        (
            module.computations[name].root
            for name in source.called
            if source.opcode == "fusion"
        ),
        source.name,
    )
    root = module.instructions[inner]
    return len(root.operands) if root.opcode == "concatenate" else 1


def _together(found: Iterable[Axis]) -> Iterable[Axis]:
    """Axes of flags that help only together: all pipelining, then with two copies of loop bodies
    as well.
    """
    on = [
        (axis, axis.settings[0])
        for axis in found
        if set(axis.settings[0].values()) <= set(_ON)
    ]
    pipelined: dict[str, str] = {}
    double: dict[str, str] = {}
    for axis, setting in on:
        if axis.kind not in ("", LOOPS):
            pipelined |= setting
        double |= {
            name: value for name, value in setting.items() if "double_buffering" in name
        }
    if len(pipelined) > 1:
        yield Axis("all pipelining", ALL, (pipelined,))
    if pipelined and double:
        yield Axis(
            "all pipelining and two copies of the loop body",
            ALL,
            ({**pipelined, **double},),
        )


def by_exposure(found: Iterable[Axis], exposed: Mapping[str, float]) -> list[Axis]:
    """Order axes: those for all kinds first, then by the exposed time of their kind, longest first.

    Axes that split combined collectives come before other kinds if these collectives have at least
    `PART` of the exposed time. A combined collective begins when its last tensor is ready, and no
    tensor can be used before all have arrived.

    Args:
        exposed: exposed microseconds by kind of collective.
    """
    many = PART * sum(exposed.values())
    apart = {
        axis.kind
        for axis in found
        if axis.parts and exposed.get(axis.kind, 0.0) >= many
    }
    return sorted(
        found,
        key=lambda axis: (
            axis.kind not in (ALL, LOOPS),
            axis.kind not in apart,
            -exposed.get(axis.kind, 0.0),
        ),
    )


WON_SHARE = 0.9
PROGRESS = 0.001
SAME = 2  # the search ends after so many budgets of compilations, even if most changed nothing


@dataclass(frozen=True)
class Trial:
    """One setting, compiled and simulated."""

    flags: Flags  # flags that differ from the user's own
    label: str  # what was tried, in words
    step_us: float | None = None  # by the likely costs; None if it did not compile
    exposed_us: float = 0.0  # exposed communication in a step
    # the same by kind of collective
    exposed_by_kind: Mapping[str, float] = field(default_factory=dict)
    worlds_us: tuple[float, ...] = ()  # the step in each world
    # temporary memory that XLA plans; None if it wrote no report
    temp_bytes: int | None = None
    # all device memory that XLA plans; None if it wrote no report
    memory_bytes: int | None = None
    lower_bound: bool = False  # whether `step_us` is only a lower bound
    # collectives that the program did not have before; their costs are modelled
    modelled: int = 0
    # fingerprint before scheduling; settings that share it are the same program
    program: str = ""
    # label of an earlier trial with the same program and schedule; empty if there is none
    same_as: str = ""
    failure: str = ""  # why it did not compile; empty if it did

    @property
    def mean_us(self) -> float:
        """Mean step over all worlds; infinite if it did not compile."""
        return (
            sum(self.worlds_us) / len(self.worlds_us)
            if self.worlds_us
            else float("inf")
        )


def exposed_by_kind(prediction: Prediction) -> dict[str, float]:
    """Exposed microseconds of a step by kind of collective."""
    found = defaultdict[str, float](float)
    for item in prediction.timeline.exposures:
        found[item.kind] += item.exposed_us
    return dict(found)


@dataclass(frozen=True, slots=True)
class OverWorlds:
    """Steps compared with the profile's schedule under the user's own flags, world by world."""

    won: int  # worlds in which the step is shorter
    of: int  # all worlds
    # change of the mean step over the worlds, as a share; negative is shorter
    mean: float
    worst: float  # the change in the worst world
    best: float  # the change in the best world

    @property
    def accepted(self) -> bool:
        """Whether it wins in nine of ten worlds, and by enough in the mean."""
        return 0 < WON_SHARE * self.of <= self.won and is_worth(-self.mean)


def judge(after_us: Sequence[float], before_us: Sequence[float]) -> OverWorlds:
    """Compare a setting's steps with those before it, world by world.

    Args:
        after_us: the setting's step in each world.
        before_us: the step it is compared with, in the same worlds and order.

    Returns:
        A comparison. It is not accepted if there is no world.
    """
    changes = [
        after / before - 1 for after, before in zip(after_us, before_us, strict=True)
    ]
    if not changes:
        return OverWorlds(0, 0, 0.0, 0.0, 0.0)
    won = sum(change < 0 for change in changes)
    mean = sum(after_us) / sum(before_us) - 1
    return OverWorlds(won, len(changes), mean, max(changes), min(changes))


def holds_up(trial: Trial, pgle: Trial) -> bool:
    """Whether a trial is better than the profile alone, by the likely costs and over the worlds."""
    if (
        trial.step_us is None
        or pgle.step_us is None
        or trial.lower_bound
        or pgle.lower_bound
    ):
        return False
    return (
        is_worth(pgle.step_us - trial.step_us, pgle.step_us)
        and judge(trial.worlds_us, pgle.worlds_us).accepted
    )


def best(current: Trial, trials: Sequence[Trial]) -> Trial:
    """The trial with the shortest mean step; `current` if that is shorter by at most `PROGRESS`."""
    shortest = min(trials, key=lambda item: item.mean_us, default=current)
    return shortest if shortest.mean_us < current.mean_us * (1 - PROGRESS) else current


def nothing_to_gain(pgle: Prediction) -> bool:
    """Whether no search can gain enough: the step is near its bound, or hardly anything is
    exposed.
    """
    step_us = max(pgle.step_us, 1e-9)
    breakdown = pgle.timeline.breakdown
    exposed_us = breakdown.exposed_communication_us + breakdown.exposed_copy_us
    left_us = step_us - pgle.shortest_us
    return not (is_worth(exposed_us, step_us) and is_worth(left_us, step_us))


Setting = tuple[Flags, str]
"""Flags, and a label for them."""


def search(
    pgle: Trial,
    shortest_us: float,
    found: Sequence[Axis],
    attempt: Callable[[Sequence[Setting]], Sequence[Trial]],
    *,
    budget: int,
) -> list[Trial]:
    """Search along the axes.

    Args:
        pgle: the trial of the user's own flags with the profile.
        shortest_us: lower bound of the step over all schedules of its program.
        found: the axes.
        attempt: compiles and simulates settings, several at once.
        budget: most trials. A setting that leaves the program and its schedule unchanged does not
            count.

    Returns:
        All trials, in order. `best` picks from them.
    """
    descent = _Descent(pgle, attempt, budget, current=pgle)
    while descent.left > 0:
        before = descent.current
        for axis in by_exposure(found, before.exposed_by_kind):
            descent.along(axis)
            if descent.left <= 0 or _is_at_shortest(descent.current, shortest_us):
                return descent.trials
        if descent.current.mean_us > before.mean_us * (1 - PROGRESS):
            break
    return descent.trials


@dataclass
class _Descent:
    """A search while it runs."""

    pgle: Trial  # the user's own flags with the profile
    attempt: Callable[[Sequence[Setting]], Sequence[Trial]]  # argument of `search`
    budget: int  # most trials
    current: Trial  # the best so far
    trials: list[Trial] = field(default_factory=list)  # all of them, in order

    @property
    def left(self) -> int:
        """How many more settings can be tried."""
        counted = sum(not trial.same_as for trial in self.trials)
        return min(self.budget - counted, SAME * self.budget - len(self.trials))

    def along(self, axis: Axis) -> None:
        """Try the settings of an axis. Halve and double its number as long as that helps, then try
        three quarters of it.
        """
        # axes for all kinds, such as presets, start from the profile alone
        start = self.pgle if axis.kind == ALL else self.current
        near = _half_and_twice(axis, axis.settings[0])
        added = _on_top(axis, [*axis.settings, *near], start)
        fewer = _without(axis, self.current.flags)
        self._is_better([*fewer, *added], axis)
        while axis.number in self.current.flags:
            near = _half_and_twice(axis, self.current.flags)
            if not self._is_better(_on_top(axis, near, self.current), axis):
                value = int(self.current.flags[axis.number]) * 3 // 4
                last: Flags = {axis.number: str(value)}
                self._is_better(_on_top(axis, [last], self.current), axis)
                break

    def _is_better(self, settings: Sequence[Setting], axis: Axis) -> bool:
        """Try the settings that are new. Return whether one is better than the best before."""
        made = (self.pgle, *self.trials)
        before = self.current
        known = [trial.flags for trial in made]
        unknown = [
            item
            for item in settings
            if item[0] not in known
            and not _is_between_alike(item[0], axis.number, made)
        ]
        if new := unknown[: max(self.left, 0)]:
            self.trials.extend(self.attempt(new))
        self.current = best(before, self.trials)
        return self.current is not before


def _on_top(axis: Axis, settings: Sequence[Flags], start: Trial) -> list[Setting]:
    """Settings of an axis, each added to the flags of a trial."""
    return [
        ({**start.flags, **setting}, _label(axis, setting, start))
        for setting in settings
    ]


def without_one(accepted: Trial) -> dict[str, Setting]:
    """The accepted setting without one of its flags, by that flag, to see how much each one gains.
    Empty if it has only one flag.
    """
    flags = accepted.flags
    if len(flags) < 2:
        return {}
    found: dict[str, Setting] = {}
    for left in flags:
        rest = {name: value for name, value in flags.items() if name != left}
        found[left] = (rest, f"without {left}")
    return found


def _is_at_shortest(trial: Trial, shortest_us: float) -> bool:
    """Whether the step is near its bound, or hardly anything is exposed. A step below the bound
    belongs to another program, whose bound is unknown.
    """
    step_us = trial.step_us or 0.0
    if step_us < shortest_us or step_us <= 0:
        return False
    left_us = step_us - shortest_us
    return not (is_worth(left_us, step_us) and is_worth(trial.exposed_us, step_us))


def _is_between_alike(flags: Flags, number: str, made: Sequence[Trial]) -> bool:
    """Whether a threshold is between two that gave the same program with the same other flags. Then
    it gives that program, too.
    """
    if number not in flags:
        return False
    wanted = int(flags[number])
    values: dict[str, list[int]] = {}  # of trials with the same other flags, by program
    for trial in made:
        value = trial.flags.get(number)
        if trial.program and value and trial.flags == {**flags, number: value}:
            values.setdefault(trial.program, []).append(int(value))
    return any(min(alike) <= wanted <= max(alike) for alike in values.values())


def _half_and_twice(axis: Axis, flags: Flags) -> list[Flags]:
    """Half and twice the number of an axis; empty if the axis has no number."""
    if not axis.number:
        return []
    value = int(flags[axis.number])
    return [{axis.number: str(near)} for near in (value * 2, value // 2) if near > 0]


def _without(axis: Axis, flags: Flags) -> list[Setting]:
    """Remove from a setting the flags of an axis, which its start of several flags set.

    Returns:
        One labelled setting, or an empty list if nothing or everything is left.
    """
    rest = {
        name: value
        for name, value in flags.items()
        if all(name not in setting for setting in axis.settings)
    }
    if axis.kind == ALL or not 0 < len(rest) < len(flags):
        return []
    return [(rest, f"left out: {axis.name.removesuffix(' to')}")]


def _label(axis: Axis, setting: Flags, current: Trial) -> str:
    """The name of the tried setting. A plus means that it adds to flags of other axes."""
    value = next(iter(setting.values()))
    text = axis.name
    if axis.number:
        text = f"{text} {int(value) / (1 << 20):g} MiB"
    elif axis.kind != ALL and len(setting) == 1:
        text = f"{text}={value}"
    is_added = not current.flags.keys() <= setting.keys()
    return f"+ {text}" if is_added else text


@dataclass(frozen=True, slots=True)
class Spread:
    """How far worlds differ, above and below the likely value."""

    compute: float = 0.15  # share by which kernels of one shape differ together
    # share by which the part of a collective that grows with its bytes differs, by kind
    collectives: float = 0.3
    # likely fixed part of each collective, at most half of its time; worlds have 0 to twice as much
    fixed_us: float = 30.0
    # slowdown of kernels during collectives, from none to twice the likely one
    contention: float = 1.0
    launch: float = 1.0  # launch gaps and host time, from none to twice


@dataclass(frozen=True, slots=True)
class World:
    """One draw of costs. The same seed and number give the same world for every schedule."""

    pair: str  # ``SEED.NUMBER``, the seed of its draws
    side: int  # 1 or -1 for the two of a pair; 0 if everything has its likely value
    spread: Spread  # how far it may differ

    def draw(self, what: str) -> float:
        """A number from -1 to 1 for the thing named `what`, always the same. The other world of the
        pair has the negative number.
        """
        return self.side * (2 * _draw(f"{self.pair}:{what}") - 1)

    def cost_us(self, op: Op, shape: str) -> float:
        """The cost of an op in this world, in microseconds."""
        if op.stream is not Stream.COMMUNICATION:
            return op.cost_us * (1 + self.spread.compute * self.draw(shape))
        fixed = min(self.spread.fixed_us, op.cost_us / 2)
        grows = (op.cost_us - fixed) * (
            1 + self.spread.collectives * self.draw(op.kind)
        )
        return fixed * (1 + self.draw("fixed")) + grows

    @property
    def contended(self) -> float:
        """The contention in this world as a multiple of the likely one, 0 to 2."""
        return 1 + self.spread.contention * self.draw("contention")

    def launch(self, likely: LaunchGaps) -> LaunchGaps:
        """The launch gaps of this world, from the likely ones."""
        times = 1 + self.spread.launch * self.draw("launch")
        return replace(
            likely,
            gap_us=likely.gap_us * times,
            switch_us=likely.switch_us * times,
            host_us=likely.host_us * times,
        )


@lru_cache(maxsize=1 << 16)
def _draw(text: str) -> float:
    """A number from 0 to 1 that depends only on the text. It is cached, since trials share it."""
    return Random(text).random()


def worlds(
    count: int, seed: int = 0, spread: Spread | None = None
) -> tuple[World, ...]:
    """Draw `count` worlds in opposite pairs. If the count is odd, the last is the likely one."""
    sides = [1, -1] * (count // 2)
    if count % 2:
        sides.append(0)
    differ = spread or Spread()
    return tuple(
        World(f"{seed}.{number // 2}", side, differ)
        for number, side in enumerate(sides)
    )


def step_in(
    world: World,
    program: Program,
    shapes: dict[str, str],
    launch: LaunchGaps,
    contention: Contention,
) -> float:
    """Simulate a step in a world.

    Args:
        shapes: a text by instruction. Kernels with the same text differ together.
        launch: the likely launch gaps.
        contention: the likely contention.

    Returns:
        Microseconds.
    """
    costs = {
        op.name: world.cost_us(op, shapes.get(op.name, op.kind))
        for op in program.ops
        if op.cost_us
    }
    return run_program(
        program, world.launch(launch), contention.at(world.contended), costs=costs
    ).step_us


def steps_in(
    among: Iterable[World], module: Module, found: Prediction
) -> tuple[float, ...]:
    """The step of a scheduled module in each world, in microseconds, from the costs, launch gaps
    and contention of its prediction.
    """
    shapes = {
        name: f"{item.opcode}:{item.shape}"
        for name, item in module.instructions.items()
    }
    return tuple(
        step_in(world, found.program, shapes, found.launch, found.contention)
        for world in among
    )
