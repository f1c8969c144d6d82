"""A search over flags: the axes of a program, coordinate descent along them, and the worlds that
judge a trial.

Axes: the catalogue says which flags decide the scheduled program or its schedule, and which values
to try. Which of them can do anything follows from the program: combine thresholds where there is
something to combine or to split, pipelining where a loop holds collectives. What the compiling
jaxlib does not know, or does by default, is left out.

Descent: one axis at a time, the best so far kept.

Worlds: a setting that wins by the likely costs can lose if these are a little different, so it is
judged in many worlds, drawn with a fixed seed. They differ in costs (kernels of one shape together,
collectives of one kind together) and in the model itself: how much of a collective's time is fixed
and how much grows with its bytes, how far collectives slow kernels, how long launches take. Worlds
come in opposite pairs: what one draws above the likely value, the other draws below it. So the mean
over worlds favours no setting.
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
"""Where thresholds start; two to five trials from here find nine tenths of the gain (simulated,
five programs).
"""
# instructions of a loop over all its iterations; 1,900 unrolled took jaxlib 0.12 8 CPU-s
MOST_UNROLLED = 4_000
PART = 0.1  # of all exposed time, from which on a kind that is combined is tried before others
TIGHT = 0.5  # part of the GPU's memory from which on the scheduler may give up overlap for memory
STREAMS = "xla_gpu_multi_streamed_windowed_einsum"
SPLIT = "xla_gpu_threshold_for_windowed_einsum_mib"
SPLIT_WITHOUT_GPU_SINCE = "0.11.2"
"""First release found to split matmuls when it compiles without a GPU; 0.7.2, 0.10.2 and 0.11.0 do
not.
"""

_THRESHOLD = "_combine_threshold_bytes"
_ON = ("on", "true")
ALL = "all"  # for `Axis.kind`: what moves every kind of collective at once comes first
# for `Axis.kind`: what copies bodies of loops that hold collectives, of whatever kind
LOOPS = "loops"


@dataclass(frozen=True, slots=True)
class Axis:
    """One thing to change."""

    name: str  # in words
    # the collective whose exposed time it is about; `ALL`, `LOOPS`; or empty: none in particular
    kind: str
    # flag values to try, each on top of the best so far, in this order
    settings: tuple[Flags, ...]
    # the flag whose value is halved and doubled, on as long as that helps; empty if absent
    number: str = ""
    parts: bool = False  # whether it splits combined collectives


def axes(
    module: Module, jaxlib: str, given: Collection[str], memory_share: float = 0.0
) -> tuple[Axis, ...]:
    """The axes of a program. If a loop holds collectives, what others recommend is a start that the
    search has to beat.

    Args:
        module: scheduled, without any of these flags.
        jaxlib: that compiles.
        given: names of flags that the user has set; they stay.
        memory_share: part of the GPU's memory that the program needs.
    """
    program = _Facts.of(module, memory_share)
    known = catalogue()
    found: list[Axis] = []
    together: dict[str, str] = {}
    taken = {*given, *(known[name].use for name in given if name in known)} - {""}
    for setting in known.values():
        current = setting.use and known_in(
            setting.use, jaxlib
        )  # its newer name is tried instead
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

    kinds: Mapping[str, int]  # of collectives, each with how many there are
    looped: frozenset[str]  # those inside loops when XLA pipelines loops
    unrolled: float  # instructions over all iterations of the longest loop that holds a collective
    # by kind and computation, bytes and number of tensors of each collective
    sizes: Mapping[tuple[str, str], list[tuple[int, int]]]
    # of these, where a threshold can join or part something
    joined: frozenset[tuple[str, str]]
    opcodes: frozenset[str]  # of all instructions
    memory_share: float  # part of the GPU's memory that it needs

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
                unrolled = max(
                    unrolled, inside * prod(count or inf for _, count in around)
                )
        if (
            "reduce-scatter" in looped
        ):  # XLA pipelines these as all-reduces, before it joins each with its slice
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
        """The axis of a setting, next to flags that the user has set."""
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
        # On several streams XLA asks its autotuner, which has no GPU here.
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
        """The threshold that is tried first; where nothing is combined, the size of two of the
        smallest together.
        """
        groups = [
            sizes
            for (other, _), sizes in self.sizes.items()
            if other == kind and len(sizes) > 1
        ]
        if self.is_combined(kind):
            return START_BYTES
        pair = min(
            (sum(sorted(size for size, _ in sizes)[:2]) for sizes in groups), default=0
        )
        return max(START_BYTES, 1 << max(pair - 1, 0).bit_length())


def _are_apart(computation: Computation, names: Collection[str]) -> bool:
    """Whether two of these instructions are independent: XLA can combine only such two."""
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
    """How many tensors a collective carries: as a tuple, or put behind each other before it
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
    """The flags that help only together: all pipelining, then also two copies of loop bodies."""
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
    """Axes about all kinds first, then in order of the exposed time, by kind, that they are about;
    about none last.

    What takes combined collectives apart, where a good part of that time is theirs, comes before
    other kinds: they begin when the last of what they carry is there, and nothing of it can be used
    before all of it is.
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
SAME = 2  # compilations, in budgets, after which the search ends though most changed nothing


@dataclass(frozen=True)
class Trial:
    """One setting, compiled and simulated."""

    flags: Flags  # what differs from the user's own flags
    label: str  # what was tried, in words
    step_us: float | None = None  # by the likely costs; None where it did not compile
    exposed_us: float = 0.0  # communication of it that nothing hides
    exposed_by_kind: Mapping[str, float] = field(
        default_factory=dict
    )  # the same by kind of collective
    worlds_us: tuple[float, ...] = ()  # steps in the worlds
    temp_bytes: int | None = (
        None  # temporary memory that XLA plans for; None if it left no report
    )
    memory_bytes: int | None = (
        None  # all device memory that XLA plans for; None if it left no report
    )
    lower_bound: bool = False  # whether the step takes at least `step_us`
    modelled: int = (
        0  # collectives that the program did not have before, whose costs are modelled
    )
    program: str = (
        ""  # fingerprint before scheduling; settings that share it are the same program
    )
    # label of an earlier trial that compiled to the same program and is scheduled alike; empty:
    # none
    same_as: str = ""
    failure: str = ""  # why it did not compile; empty where it did

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
    """Steps against the steps of PGLE's schedule with the user's own flags, world by world."""

    won: int  # worlds in which the step is shorter
    of: int  # worlds
    mean: float  # change of the mean step over the worlds, as a share; negative is shorter
    worst: float  # the change in the worst world
    best: float  # the change in the best world

    @property
    def accepted(self) -> bool:
        """Whether it wins in nine of ten worlds and by enough."""
        return 0 < WON_SHARE * self.of <= self.won and is_worth(-self.mean)


def judge(after_us: Sequence[float], before_us: Sequence[float]) -> OverWorlds:
    """Compare steps with other steps of the same worlds.

    Returns:
        Without any world, a comparison that is not accepted.
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
    """Whether a trial is accepted against the profile alone: by the likely costs and over the
    worlds.
    """
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
    """The trial with the shortest mean step; `current` stays if that is hardly shorter."""
    shortest = min(trials, key=lambda item: item.mean_us, default=current)
    return shortest if shortest.mean_us < current.mean_us * (1 - PROGRESS) else current


def nothing_to_gain(pgle: Prediction) -> bool:
    """Whether nothing can be gained: at the shortest step, or next to nothing is exposed."""
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
    """All trials, in order; `best` picks from them.

    Args:
        pgle: the user's own flags with the profile.
        shortest_us: lower bound of the step of any schedule of its program.
        found: the axes.
        attempt: compiles and simulates, at once where there are several.
        budget: trials at most; flags that leave the program and its scheduling as they were are
            none.
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
    attempt: Callable[[Sequence[Setting]], Sequence[Trial]]  # as of `search`
    budget: int  # trials at most
    current: Trial  # the best so far
    trials: list[Trial] = field(default_factory=list)  # all of them, in order

    @property
    def left(self) -> int:
        """How many settings can be tried yet."""
        counted = sum(not trial.same_as for trial in self.trials)
        return min(self.budget - counted, SAME * self.budget - len(self.trials))

    def along(self, axis: Axis) -> None:
        """Try the settings of an axis. Its number is halved and doubled as long as that helps, then
        three quarters of it are tried.
        """
        # presets and the like are starts of their own
        start = self.pgle if axis.kind == ALL else self.current
        near = _half_and_twice(axis, axis.settings[0])
        fewer = _without(axis, self.current.flags)
        self._is_better([*fewer, *_on_top(axis, [*axis.settings, *near], start)], axis)
        while axis.number in self.current.flags:
            near = _half_and_twice(axis, self.current.flags)
            if not self._is_better(_on_top(axis, near, self.current), axis):
                value = int(self.current.flags[axis.number]) * 3 // 4
                last: Flags = {axis.number: str(value)}
                self._is_better(_on_top(axis, [last], self.current), axis)
                break

    def _is_better(self, settings: Sequence[Setting], axis: Axis) -> bool:
        """Try the new settings; whether one of these is better than the best before."""
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
    """Settings of an axis, each with the flags of a trial."""
    return [
        ({**start.flags, **setting}, _label(axis, setting, start))
        for setting in settings
    ]


def without_one(accepted: Trial) -> dict[str, Setting]:
    """The accepted setting without each of its flags, by flag, to see what each gives; none where
    it has only one.
    """
    flags = accepted.flags
    if len(flags) < 2:
        return {}
    return {
        left: ({name: flags[name] for name in flags if name != left}, f"without {left}")
        for left in flags
    }


def _is_at_shortest(trial: Trial, shortest_us: float) -> bool:
    """Whether nothing is left to hide. A shorter step than the shortest is of another
    program, whose shortest is not known.
    """
    step_us = trial.step_us or 0.0
    if step_us < shortest_us or step_us <= 0:
        return False
    left_us = step_us - shortest_us
    return not (is_worth(left_us, step_us) and is_worth(trial.exposed_us, step_us))


def _is_between_alike(flags: Flags, number: str, made: Sequence[Trial]) -> bool:
    """If two thresholds give the same program, with the same other flags, so does every value
    between them.
    """
    if number not in flags:
        return False
    others = {name: value for name, value in flags.items() if name != number}
    values: dict[str, list[int]] = {}
    for trial in made:
        if (
            trial.program
            and number in trial.flags
            and trial.flags == {**others, number: trial.flags[number]}
        ):
            values.setdefault(trial.program, []).append(int(trial.flags[number]))
    return any(
        min(alike) <= int(flags[number]) <= max(alike) for alike in values.values()
    )


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
    text = f"{axis.name} {int(value) / (1 << 20):g} MiB" if axis.number else axis.name
    text = (
        f"{text}={value}"
        if not axis.number and axis.kind != ALL and len(setting) == 1
        else text
    )
    return f"+ {text}" if any(flag not in setting for flag in current.flags) else text


@dataclass(frozen=True, slots=True)
class Spread:
    """How far worlds differ, above and below the likely value."""

    compute: float = 0.15  # share by which kernels of one shape differ together
    # share by which the part of a collective that grows with its bytes differs, by kind
    collectives: float = 0.3
    # the fixed part of each collective, from nothing to twice; at most half of what it takes
    fixed_us: float = 30.0
    contention: float = (
        1.0  # slowdown of kernels during collectives, from none to twice the likely one
    )
    launch: float = 1.0  # launch gaps and host time, from none to twice


@dataclass(frozen=True, slots=True)
class World:
    """One draw; the same seed and number give the same world for every schedule."""

    pair: str  # ``SEED.NUMBER``, what its draws follow from
    side: int  # 1 or -1: the two of a pair; 0: everything as it is likely to be
    spread: Spread  # how far it may differ

    def draw(self, what: str) -> float:
        """A number from -1 to 1 for something, always the same; minus that in the other world of
        the pair.
        """
        return self.side * (2 * _draw(f"{self.pair}:{what}") - 1)

    def cost_us(self, op: Op, shape: str) -> float:
        """Microseconds that an op costs in this world."""
        if op.stream is not Stream.COMMUNICATION:
            return op.cost_us * (1 + self.spread.compute * self.draw(shape))
        fixed = min(self.spread.fixed_us, op.cost_us / 2)
        grows = (op.cost_us - fixed) * (
            1 + self.spread.collectives * self.draw(op.kind)
        )
        return fixed * (1 + self.draw("fixed")) + grows

    @property
    def contended(self) -> float:
        """How many times the likely contention holds here, 0 to 2."""
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
    """A number from 0 to 1 that depends on the text alone; cached, since trials share them."""
    return Random(text).random()


def worlds(
    count: int, seed: int = 0, spread: Spread | None = None
) -> tuple[World, ...]:
    """That many worlds, in opposite pairs; if the count is odd, the last is the likely one."""
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
    """Microseconds of a step in a world; kernels with the same text in `shapes`, by instruction,
    differ together.
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
    """Microseconds of a scheduled module's step in each world, with costs, launch gaps and
    contention of its prediction.
    """
    shapes = {
        name: f"{item.opcode}:{item.shape}"
        for name, item in module.instructions.items()
    }
    return tuple(
        step_in(world, found.program, shapes, found.launch, found.contention)
        for world in among
    )
