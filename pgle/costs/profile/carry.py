"""Carry a profile's costs to the names of another module: another jax, another number of devices,
an edited program.

Instructions are matched by what they are, the surest evidence first. Four things identify an
instruction: the instruction itself (opcode, shapes, fused operations, framework name, whether it
runs in a loop), the instructions that feed it, its users, and its place among equal ones.
Neighbourhoods are hashed as Weisfeiler and Leman do: each round adds the neighbours' hashes to the
instruction's own.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from math import log
from statistics import median
from typing import TypeVar

from pgle.costs.estimate.communication import payload_bytes
from pgle.costs.estimate.estimate import estimator
from pgle.costs.estimate.products import matmuls, multiplies_as
from pgle.costs.profile.coverage import fill
from pgle.costs.profile.lookup import LookupRow, LookupTable
from pgle.costs.profile.value import Cost, CostKind, Origin, Profile, effective_costs
from pgle.errors import UserError, in_percent
from pgle.files import AnyPath
from pgle.xla.async_opcodes import is_done
from pgle.xla.async_pairs import start_of
from pgle.xla.collectives import collective_kind, group_size
from pgle.xla.hlo.module import Instruction
from pgle.xla.targets import Hardware

ROUNDS = 3  # rounds of hashing; more rounds distinguish few further instructions
Scale = Callable[[LookupRow, LookupRow], float | None]
"""Returns the factor for a cost, from the row that it was measured on to another row; None if
unknown.
"""


def scale_by(old: LookupTable, new: LookupTable, hardware: Hardware) -> Scale:
    """Return a scale that divides the new row's estimate by the old row's, both for one GPU."""
    before = estimator(old.module, hardware)
    after = estimator(new.module, hardware)

    def scale(was: LookupRow, row: LookupRow) -> float | None:
        """Return by which factor the estimate of a row grows; None if there was no estimate."""
        before_us = before(was.instruction)
        return after(row.instruction) / before_us if before_us > 0 else None

    return scale


T = TypeVar("T")
Key = Callable[["Graph", LookupRow], Hashable]


class By(StrEnum):
    """The evidence for a match, the surest first."""

    # same instruction and neighbourhood, equally often in both modules
    STRUCTURE = "structure"
    NAME = "name"  # same instruction and name
    # same opcode and shapes; the median of the old costs if the counts differ
    SHAPE = "shape"
    # the cost is scaled by estimates: a collective of another size or group, another kernel of the
    # same sizes, the same line of the program with other sizes
    SCALED = "scaled"


@dataclass(frozen=True, slots=True)
class Match:
    """An instruction of the new module and the cost that it gets."""

    name: str  # name in the new module when LHS ran
    was: str  # name in the old module
    by: By
    cost: Cost  # the cost under the new name


@dataclass(frozen=True)
class Carried:
    """A profile under the names of another module."""

    profile: Profile
    matches: tuple[Match, ...]
    # instructions of the new module that need a cost and got none
    left: tuple[str, ...]
    unused: tuple[str, ...]  # instructions of the old module whose cost was not carried
    # time of the profile's costs for the old module, in µs per execution
    profile_us: float
    carried_us: float  # the part of `profile_us` that was carried

    @property
    def share(self) -> float:
        """The share of the profile's time that was carried, 0 to 1."""
        return self.carried_us / self.profile_us if self.profile_us > 0 else 0.0

    def count(self, by: By) -> int:
        """Return the number of matches with this evidence."""
        return sum(match.by is by for match in self.matches)


LEAST_KNOWN = 0.5
"""A profile belongs to a module if at least this share of its time is for the module's
instructions.

For profiles that pgle measured, the share on their own module is 1. Names such as ``fusion.3``
occur in every module: profiles of two other programs had 3 and 6 %.
"""


def known_share(profile: Profile, module: LookupTable) -> float:
    """Return the share of a profile's time, 0 to 1, that belongs to instructions of a module; 0 if
    there is none.
    """
    times, other_us = _times(profile, module)
    known_us = sum(times.values())
    return known_us / (known_us + other_us) if known_us > 0 else 0.0


def check_source(profile: Profile, module: LookupTable, path: AnyPath) -> None:
    """Raise `UserError` if a profile, read from `path`, was measured on another module."""
    known = known_share(profile, module)
    if known < LEAST_KNOWN:
        raise UserError(
            f"only {in_percent(known)} of its time is of instructions of {module.module.name} in "
            "--from",
            where=path,
            remedy=(
                "--from is not the module that this profile was measured on; give the dump of "
                "the profile run"
            ),
        )


def _times(profile: Profile, module: LookupTable) -> tuple[dict[str, float], float]:
    """Return the times of a profile's costs, in µs per execution of the module.

    Returns:
        The time of each row that has a cost, by name; then the sum of the costs that belong to no
        such row. Loops do not count: the costs inside them do.
    """
    effective = effective_costs(profile, module.final.fingerprint)
    rows = module.rows
    known_us: dict[str, float] = {}
    names: set[str] = set()
    for name, cost in module.find(effective).items():
        row = rows[name]
        if cost.is_valid and not row.differs(cost):
            known_us[name] = cost.cost_us * row.executions
            names.update(row.accepted)
    others = (
        cost.cost_us
        for name, cost in effective.items()
        if name not in names and cost.is_valid and cost.likely_kind is not CostKind.LOOP
    )
    return known_us, sum(others)


def carry(
    profile: Profile,
    old: LookupTable,
    new: LookupTable,
    scale: Scale = lambda old, new: None,
) -> Carried:
    """Put the costs that XLA finds for one module under the names of another.

    Args:
        scale: how to scale a cost if the work differs: a collective's bytes or group, the way in
            which XLA makes a kernel, or the sizes on a line of the program.
    """
    costs = old.costs(profile)
    before = [
        row
        for name, row in old.rows.items()
        if name in costs and not row.differs(costs[name])
    ]
    matcher = _Matcher(Graph(old), Graph(new), before, list(new.rows.values()))
    used: set[str] = set()
    matches = []
    for by, was, row in matcher.exact():
        matches.append(_match(row, was, costs[was.name], by))
        used.add(was.name)
    for group, row in matcher.by_shape():
        names = [was.name for was in group]
        cost_us = median(costs[name].cost_us for name in names)
        cost = row.cost(cost_us, Origin.SAME_SHAPE)
        matches.append(Match(row.name, names[0], By.SHAPE, cost))
        used.update(names)
    for was, row in matcher.scaled():
        factor = scale(was, row)
        if factor is not None:
            matches.append(_match(row, was, costs[was.name], By.SCALED, factor))
            used.add(was.name)
    matched = {match.name for match in matches}
    left = tuple(
        name
        for name, row in new.rows.items()
        if name not in matched and not row.is_optional
    )
    carried = tuple(match.cost for match in matches)
    record = _record(old, new, matches, left)
    time_us, other_us = _times(profile, old)
    unused = tuple(row.name for row in before if row.name not in used)
    return Carried(
        profile=Profile(carried, {**profile.provenance, "carried": record}),
        matches=tuple(matches),
        left=left,
        unused=unused,
        profile_us=sum(time_us.values()) + other_us,
        carried_us=sum(us for name, us in time_us.items() if name in used),
    )


def _record(
    old: LookupTable, new: LookupTable, matches: Sequence[Match], left: Sequence[str]
) -> dict[str, object]:
    """Return the record of this operation for the provenance of the carried profile."""
    found = Counter(match.by for match in matches)
    return {
        "from": old.module.name,
        "from_fingerprint": old.final.fingerprint,
        "to": new.module.name,
        "to_fingerprint": new.final.fingerprint,
        "by": {by.value: found[by] for by in By},
        "left": len(left),
    }


def under_other_flags(
    given: Profile, old: LookupTable, new: LookupTable, hardware: Hardware
) -> tuple[Profile, int]:
    """Put a program's costs under the names that new flags give, and fill the gaps.

    Args:
        given: costs measured under the user's own flags.

    Returns:
        The profile, and the number of collectives that the program did not have before. Their costs
        are scaled or estimated.
    """
    carried = carry(given, old, new, scale_by(old, new, hardware))
    costs = {match.name: match.cost for match in carried.matches}
    gaps = [row for name, row in new.rows.items() if name not in costs]
    fills = fill(new, costs, gaps, estimator(new.module, hardware))
    measured = old.costs(given)
    others = (item for item in carried.matches if item.by is By.SCALED)
    scaled = {
        item.name for item in others if item.cost.cost_us != measured[item.was].cost_us
    }
    modelled = {row.name for row in gaps} | scaled
    profile = Profile((*costs.values(), *fills.values()), given.provenance)
    return profile, sum(new.rows[name].kind is CostKind.COLLECTIVE for name in modelled)


def _match(
    row: LookupRow, was: LookupRow, cost: Cost, by: By, factor: float = 1.0
) -> Match:
    """Return a row of the new module with the cost of its predecessor, times a factor."""
    slowest_us = None if cost.slowest_us is None else cost.slowest_us * factor
    found = cost._replace(
        name=row.filed_as,
        fingerprint="",
        opcode=row.opcode,
        shape=row.shape,
        trace_name="",
        cost_us=cost.cost_us * factor,
        min_us=cost.min_us * factor,
        max_us=cost.max_us * factor,
        slowest_us=slowest_us,
    )
    if by is By.SCALED:
        found = found._replace(origin=Origin.ESTIMATED)
    return Match(row.name, was.name, by, found)


class Graph:
    """The rows of a module, keys that say what each row is, and the edges between rows."""

    def __init__(self, table: LookupTable) -> None:
        self.table, self.module = table, table.module
        self.rows = dict(table.rows)
        self.row_of = {row.instruction.name: row for row in self.rows.values()}

    @cached_property
    def place(self) -> Mapping[str, int]:
        """The position of each row in the module. Rows that are otherwise equal are paired in this
        order.
        """
        order = {name: number for number, name in enumerate(self.module.instructions)}
        return {name: order[row.instruction.name] for name, row in self.rows.items()}

    def outline(self, row: LookupRow) -> Hashable:
        """Return a key: opcode, shapes, group size, emitter, and whether the row runs in a loop."""
        group = group_size(self.module, row.instruction) if _is_collective(row) else 0
        return (
            row.opcode,
            row.shape,
            self._operand_shapes(row),
            group,
            row.executions > 1,
            self._kernel(row),
        )

    def essence(self, row: LookupRow) -> Hashable:
        """Return a key that survives a change of layouts, unit dimensions and library: `sizes` and
        emitter.
        """
        return self.sizes(row), self._kernel(row)

    def sizes(self, row: LookupRow) -> Hashable:
        """Return a key that also survives a change of kernel: a product's sizes without its types,
        else sizes and types of results and operands.
        """
        if _is_collective(row):
            return (
                row.opcode,
                _sent(self, row),
                group_size(self.module, row.instruction),
                row.executions > 1,
            )
        products = [
            (item.batch, *sorted((item.m, item.n)), item.k)
            for item in matmuls(self.module, row.instruction)
        ]
        if products:
            return "products", tuple(sorted(products)), row.executions > 1
        arrays = re.findall(r"[a-z]\w*\[[\d,]*\]", self._shapes(row))
        return frozenset(Counter(map(_size, arrays)).items()), row.executions > 1

    def origin(self, row: LookupRow) -> Hashable:
        """Return a key that survives a change of sizes: framework name, opcode, emitter, and
        whether it runs in a loop.

        A row without a framework name has a key of its own.
        """
        name = framework_name(row.instruction)
        known = name if name else (id(self), row.name)
        return known, row.opcode, self._kernel(row), row.executions > 1

    def form(self, row: LookupRow) -> Hashable:
        """Return a key that survives a change of sizes, and needs no framework name.

        It holds the stem of the HLO name, the opcode, whether the row runs in a loop, and types
        with their ranks.
        """
        stem = re.sub(r"[.\d]+$", "", row.name)
        types = _NUMBERS.sub("n", self._shapes(row))
        return stem, row.opcode, row.executions > 1, types

    def _kernel(self, row: LookupRow) -> Hashable:
        """Return which of XLA's emitters makes a kernel; for a product, the types and units that
        multiply.

        Transposing in a loop takes twice as long as transposing in tiles.
        """
        products = multiplies_as(self.module, row.instruction)
        return products or self.module.operation(row.instruction).fusion_kind

    @cached_property
    def itself(self) -> Mapping[str, int]:
        """The hash of each row without its neighbours."""
        return {
            name: hash(
                (
                    self.outline(row),
                    self.module.work(row.instruction),
                    framework_name(row.instruction),
                )
            )
            for name, row in self.rows.items()
        }

    def _operand_shapes(self, row: LookupRow) -> tuple[str, ...]:
        """Return the shapes of a row's operands, in any order."""
        item = row.instruction
        if not item.operands:
            item = self.module.operation(item)
        return tuple(sorted(map(str, self.module.operand_shapes(item))))

    def _shapes(self, row: LookupRow) -> str:
        """Return the shapes of the result and the operands, as text."""
        return " ".join((row.shape, *self._operand_shapes(row)))

    @cached_property
    def feeds(self) -> Mapping[str, tuple[str, ...]]:
        """For each row, the rows that produce its operands. Bitcasts, dones and tuples, which have
        no rows, are looked through.
        """
        return {
            name: tuple(self._sources(row.instruction))
            for name, row in self.rows.items()
        }

    @cached_property
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """The inverse of `feeds`."""
        found: dict[str, list[str]] = defaultdict(list)
        for name, sources in self.feeds.items():
            for source in sources:
                found[source].append(name)
        return {name: tuple(found[name]) for name in self.rows}

    def _sources(self, item: Instruction) -> Iterator[str]:
        """Yield the names of the rows whose results an instruction uses, through instructions
        without a row.
        """
        waiting = [*reversed(item.operands)]
        seen = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if (row := self.row_of.get(name)) is not None:
                yield row.name
                continue
            found = self.module.instructions.get(name)
            if found is None:
                continue
            start = start_of(self.module, found) if is_done(found) else None
            if start is not None and start.name in self.row_of:
                yield self.row_of[start.name].name
            else:
                waiting += reversed(found.operands)

    @cached_property
    def rounds(self) -> Sequence[Mapping[str, int]]:
        """The hash of each row with its neighbourhood, after 0, 1 … `ROUNDS` rounds."""
        found = [self.itself]
        for _ in range(ROUNDS):
            last = found[-1]
            found.append(
                {
                    name: hash(
                        (
                            last[name],
                            *(last[source] for source in self.feeds[name]),
                            *sorted(last[user] for user in self.users[name]),
                        )
                    )
                    for name in self.rows
                }
            )
        return found

    @cached_property
    def upstream(self) -> Mapping[str, int]:
        """The hash of each row with all rows that it depends on. It distinguishes layer 3 of a
        stack from layer 4.
        """
        found: dict[str, int] = {}
        for name in sorted(self.rows, key=self.place.__getitem__):
            found[name] = hash(
                (
                    self.itself[name],
                    *(found.get(source, 0) for source in self.feeds[name]),
                )
            )
        return found


_NUMBERS = re.compile(r"(?<=[\[,])\d+")
"""The sizes in the text of a shape."""


def _size(text: str) -> tuple[str, tuple[int, ...]]:
    """Return type and sorted dimensions of an array, without dimensions of 1."""
    dtype, _, sizes = text.rstrip("]").partition("[")
    return dtype, tuple(
        sorted(int(size) for size in sizes.split(",") if size not in ("", "1"))
    )


def framework_name(item: Instruction) -> str:
    """Return ``metadata.op_name`` without ``jit(main)`` and parameters, which differ between jax
    releases.
    """
    return re.sub(r"\[[^]]*\]|jit\(main\)/", "", item.op_name)


_EXACT: Sequence[tuple[By, Key]] = (
    (
        By.STRUCTURE,
        lambda of, row: (of.upstream[row.name], of.rounds[ROUNDS][row.name]),
    ),
    (By.STRUCTURE, lambda of, row: of.rounds[ROUNDS][row.name]),
    (By.NAME, lambda of, row: (row.name, of.itself[row.name])),
    (By.STRUCTURE, lambda of, row: of.upstream[row.name]),
    (By.STRUCTURE, lambda of, row: of.rounds[1][row.name]),
    (By.STRUCTURE, lambda of, row: of.itself[row.name]),
    (By.SHAPE, lambda of, row: (of.outline(row), of.module.work(row.instruction))),
    (By.SHAPE, lambda of, row: of.outline(row)),
    (By.SHAPE, lambda of, row: (of.essence(row), framework_name(row.instruction))),
    (By.SHAPE, lambda of, row: of.essence(row)),
)


class _Matcher:
    """Pairs old rows with new ones. Each new row gets at most one partner."""

    def __init__(
        self,
        old: Graph,
        new: Graph,
        before: Sequence[LookupRow],
        after: Sequence[LookupRow],
    ) -> None:
        self.old, self.new = old, new
        self.all_before = sorted(before, key=lambda row: old.place[row.name])
        self.before = self.all_before
        self.after = sorted(after, key=lambda row: new.place[row.name])

    def exact(self) -> Iterator[tuple[By, LookupRow, LookupRow]]:
        """Yield pairs of the same instruction as (evidence, old, new), the surest first."""
        for by, key in _EXACT:
            paired = list(self._paired(key, _if_as_many, self.before))
            taken = {id(was) for was, _ in paired}
            self.before = [row for row in self.before if id(row) not in taken]
            yield from ((by, was, row) for was, row in paired)

    def by_shape(self) -> Iterator[tuple[Sequence[LookupRow], LookupRow]]:
        """Yield all old rows of one outline or essence, with each unpaired new row that shares
        it.
        """
        for key in (Graph.outline, Graph.essence):
            yield from self._paired(
                key,
                lambda mine, rows: [mine] * len(rows) if mine else (),
                self.all_before,
            )

    def scaled(self) -> Iterator[tuple[LookupRow, LookupRow]]:
        """Yield pairs whose cost must be scaled: kernels of the same sizes from another emitter,
        then lines of the program with other sizes, then collectives of another size or group.

        Collectives are paired in order by kind, framework name and number of arrays. If XLA
        combined other collectives, each is paired with the one that is nearest in bytes.
        """
        kernels = [row for row in self.all_before if not _is_collective(row)]
        # The last two keys find the same line of the program with other sizes, as after a change of
        # the number of layers.
        for same in (Graph.sizes, Graph.origin, Graph.form):
            yield from self._paired(
                same, _in_order, kernels, lambda row: not _is_collective(row)
            )
        collectives = list(filter(_is_collective, self.all_before))
        yield from self._paired(
            lambda of, row: (_source(of, row), row.shape.count("[")),
            _in_order,
            collectives,
            _is_collective,
        )
        for key in (
            _source,
            lambda of, row: collective_kind(of.module, row.instruction),
        ):
            yield from self._paired(key, self._nearest, collectives, _is_collective)

    def _paired(
        self,
        key: Key,
        partners: Callable[[Sequence[LookupRow], Sequence[LookupRow]], Sequence[T]],
        before: Sequence[LookupRow],
        wanted: Callable[[LookupRow], bool] | None = None,
    ) -> Iterator[tuple[T, LookupRow]]:
        """Yield the new rows that find a partner, each as (partner, new row).

        Args:
            key: old and new rows with equal keys belong together.
            partners: takes the old and the new rows of one key. It returns a partner for each new
                row, or nothing.
            wanted: keeps the new rows for which it is true; None keeps all.
        """
        old = _groups(self.old, before, key)
        new = _groups(self.new, filter(wanted, self.after), key)
        taken = set[int]()
        for found, rows in new.items():
            of_rows = partners(old.get(found, []), rows)
            for was, row in zip(of_rows, rows, strict=False):
                taken.add(id(row))
                yield was, row
        self.after = [row for row in self.after if id(row) not in taken]

    def _nearest(
        self, mine: Sequence[LookupRow], rows: Sequence[LookupRow]
    ) -> Sequence[LookupRow]:
        """Return, for each new row, the old row whose bytes have the ratio nearest to 1."""
        sizes = [max(_sent(self.new, row), 1) for row in rows if mine]
        return [
            min(mine, key=lambda was: abs(log(max(_sent(self.old, was), 1) / size)))
            for size in sizes
        ]


def _if_as_many(
    mine: Sequence[LookupRow], rows: Sequence[LookupRow]
) -> Sequence[LookupRow]:
    """Return the old rows if their number equals that of the new ones, else nothing."""
    return mine if len(mine) == len(rows) else ()


def _in_order(
    mine: Sequence[LookupRow], rows: Sequence[LookupRow]
) -> Sequence[LookupRow]:
    """Return, for each new row, the old row at the same relative place."""
    if not mine:
        return []
    places = (at * len(mine) // len(rows) for at in range(len(rows)))
    return [mine[min(place, len(mine) - 1)] for place in places]


def _sent(of: Graph, row: LookupRow) -> int:
    """Return the bytes of a collective, as nccl-tests count them."""
    inner = of.module.operation(row.instruction)
    return payload_bytes(of.module, row.opcode, inner)


def _source(of: Graph, row: LookupRow) -> Hashable:
    """Return what in the program made an instruction: the kind of collective and the framework's
    name.
    """
    return collective_kind(of.module, row.instruction), framework_name(row.instruction)


def _is_collective(row: LookupRow) -> bool:
    """Whether a row is a collective."""
    return row.kind is CostKind.COLLECTIVE


def _groups(
    of: Graph, rows: Iterable[LookupRow], key: Key
) -> dict[Hashable, list[LookupRow]]:
    """Group rows by a key of the graph."""
    found: dict[Hashable, list[LookupRow]] = defaultdict(list)
    for row in rows:
        found[key(of, row)].append(row)
    return found
