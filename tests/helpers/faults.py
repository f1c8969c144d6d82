"""Faults of known size, written into copies of real nsys exports.

A recording is edited as rows of its SQLite tables, with pgle nowhere in between: kernels are moved,
made longer, split, renamed, doubled; whole executions are repeated. What waits for what is kept by
hand: `hold` makes a rank late, and the next collective that the other ranks are in ends as much
later.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

KERNELS, CALLS, RANGES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
MODULE = re.compile(r"XlaModule:#.*?hlo_module=([^,#]+)")
THUNK = re.compile(r"Thunk:#.*?hlo_op=([^,#]+)")
AHEAD = 10**12
"""Correlation ids of rows that are added begin here."""


@dataclass
class Rank:
    """The main module's kernels of one export, editable; n rows by start."""

    path: Path
    rows: np.ndarray  # int64[n], rowid
    start: np.ndarray  # int64[n], ns
    end: np.ndarray  # int64[n], ns
    stream: np.ndarray  # int64[n]
    name: np.ndarray  # str[n], the HLO instruction
    execution: np.ndarray  # int64[n]; -1 of other modules
    added: list[tuple[int, int, int, dict[str, object]]] = field(
        default_factory=list
    )  # (like row, start, end, values)
    renamed: dict[int, str] = field(default_factory=dict)  # kernel name by row

    def of(self, execution: int) -> np.ndarray:
        return np.flatnonzero(self.execution == execution)

    def shift(self, after_ns: int, by_ns: int) -> None:
        """Everything that starts at a time or later starts later."""
        late = self.start >= after_ns
        self.start[late] += by_ns
        self.end[late] += by_ns
        self.added = [
            (
                row,
                start + by_ns * (start >= after_ns),
                end + by_ns * (start >= after_ns),
                values,
            )
            for row, start, end, values in self.added
        ]

    def lengthen(self, row: int, by_ns: int) -> None:
        """One kernel takes longer, and all that follows starts later."""
        self.shift(int(self.end[row]), by_ns)
        self.end[row] += by_ns


def is_collective(name: str) -> bool:
    return name.startswith(("all-", "reduce-scatter", "collective-"))


def _is_last(rank: Rank, row: int) -> bool:
    """Whether nothing that runs when a kernel begins, or begins meanwhile, runs on behind its
    end.
    """
    return not ((rank.start < rank.end[row]) & (rank.end > rank.end[row])).any()


class Faulty:
    """Copies of the exports of one job."""

    def __init__(self, exports: Sequence[Path], folder: Path, main: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.main = main
        self.ranks: list[Rank] = []
        for export in exports:
            path = folder / export.name
            path.write_bytes(export.read_bytes())
            path.chmod(0o644)
            self.ranks.append(
                Rank(path, *(column.copy() for column in _read(export, main)))
            )

    @property
    def paths(self) -> list[Path]:
        return [rank.path for rank in self.ranks]

    def hold(self, late: int, execution: int, by_ns: int, *, busy: bool = False) -> str:
        """A rank is late at a collective of one execution, for which the others wait.

        The collective is the first at which this rank was the last before, so that the step gets as
        much longer.

        Args:
            late: number of the rank.
            busy: a kernel takes longer, else there is a gap.

        Returns:
            The instruction before which the gap is, or which takes longer.
        """
        rank, others = self.ranks[late], self.ranks[:late] + self.ranks[late + 1 :]
        rows = rank.of(execution).tolist()
        for row in (row for row in rows[1:] if is_collective(rank.name[row])):
            meets = [
                int(
                    np.flatnonzero(
                        (one.execution == execution) & (one.name == rank.name[row])
                    )[0]
                )
                for one in others
            ]
            waited = (
                rank.end[row]
                - rank.start[row]
                - min(
                    int(one.end[at] - one.start[at])
                    for one, at in zip(others, meets, strict=True)
                )
            )
            exposed = all(
                _is_last(one, at) for one, at in zip(others, meets, strict=True)
            )
            before = self._alone_before(rank, row)
            if exposed and before and waited < 0.01 * by_ns:
                if busy:
                    rank.lengthen(before - 1, by_ns)
                else:
                    rank.shift(int(rank.start[before]), by_ns)
                for one, at in zip(others, meets, strict=True):
                    one.lengthen(at, by_ns)
                return str(rank.name[before - 1 if busy else before])
        raise LookupError("no such collective")

    def slow_link(
        self, rank: int, name: str, executions: Iterable[int], by_ns: int
    ) -> None:
        """A collective takes one rank longer, whose peers wait for it at their next collective."""
        slow = self.ranks[rank]
        others = self.ranks[:rank] + self.ranks[rank + 1 :]
        for execution in executions:
            rows = slow.of(execution)
            (row,) = rows[slow.name[rows] == name].tolist()
            behind = rows[slow.start[rows] >= slow.end[row]].tolist()
            meets = next(at for at in behind if is_collective(slow.name[at]))
            slow.lengthen(row, by_ns)
            for one in others:
                here = one.of(execution)
                (at,) = here[one.name[here] == slow.name[meets]].tolist()
                one.lengthen(at, by_ns)

    def slow_compute(
        self, rank: int, factor: float, executions: Iterable[int]
    ) -> float:
        """All compute of one rank takes longer; its peers wait at each collective.

        Returns:
            By how much a step of it gets longer, in ns.
        """
        slow = self.ranks[rank]
        others = self.ranks[:rank] + self.ranks[rank + 1 :]
        chosen = list(executions)
        total = 0
        for execution in chosen:
            given = late = 0
            for row in slow.of(execution).tolist():
                if is_collective(slow.name[row]):
                    for one in others:
                        here = one.of(execution)
                        (at,) = here[one.name[here] == slow.name[row]].tolist()
                        one.lengthen(at, late - given)
                    given = late
                else:
                    by = round((slow.end[row] - slow.start[row]) * (factor - 1))
                    slow.lengthen(row, by)
                    late += by
            total += late
        return total / len(chosen)

    def _alone_before(self, rank: Rank, collective: int) -> int:
        """The kernel nearest to a collective, none being between, that nothing else runs up to; 0
        if there is none.
        """
        reach = np.maximum.accumulate(rank.end)
        for row in range(collective, max(collective - 40, 2), -1):
            if (
                is_collective(rank.name[row - 1])
                or rank.execution[row - 1] != rank.execution[collective]
            ):
                return 0
            if (
                rank.start[row] >= reach[row - 1]
                and rank.start[row - 1] >= reach[row - 2]
            ):
                return row
        return 0

    def hold_all(self, execution: int, at: float, by_ns: int) -> str:
        """All ranks pause at one place of an execution."""
        name = ""
        for rank in self.ranks:
            alone = self._alone(rank, execution, at)
            rank.shift(int(rank.start[alone]), by_ns)
            name = str(rank.name[alone])
        return name

    def _alone(self, rank: Rank, execution: int, at: float) -> int:
        """The first compute kernel behind a share of an execution that nothing else runs up to, nor
        its forerunner.
        """
        rows = rank.of(execution)
        after = int(
            rank.start[rows[0]] + at * (rank.end[rows].max() - rank.start[rows[0]])
        )
        reach = np.maximum.accumulate(rank.end)
        for row in rows[1:].tolist():
            free = rank.start[row] >= reach[row - 1] and (
                row < 2 or rank.start[row - 1] >= reach[row - 2]
            )
            if (
                rank.start[row] >= after
                and free
                and not (
                    is_collective(rank.name[row]) or is_collective(rank.name[row - 1])
                )
            ):
                return row
        raise LookupError("no kernel runs alone there")

    def stretch(self, execution: int, factor: float) -> None:
        """Every kernel and every gap of an execution takes longer by a factor, on all ranks."""
        for rank in self.ranks:
            rows = rank.of(execution)
            begin, end = int(rank.start[rows].min()), int(rank.end[rows].max())
            more = round((end - begin) * (factor - 1))
            rank.shift(end, more)
            rank.start[rows] = begin + np.round(
                (rank.start[rows] - begin) * factor
            ).astype(np.int64)
            rank.end[rows] = begin + np.round((rank.end[rows] - begin) * factor).astype(
                np.int64
            )

    def lengthen(self, name: str, factor: float, executions: Iterable[int]) -> float:
        """An instruction takes longer on all ranks; what follows starts later. Returns what a step
        gains, in ns.
        """
        total = []
        for rank in self.ranks:
            for execution in executions:
                gained = 0
                for row in rank.of(execution).tolist():
                    if rank.name[row] == name:
                        more = round((rank.end[row] - rank.start[row]) * (factor - 1))
                        rank.lengthen(row, more)
                        gained += more
                total.append(gained)
        return float(np.mean(total))

    def split(self, parts: int, gap_ns: int, executions: Iterable[int]) -> float:
        """Every compute kernel becomes several with gaps between them. Returns what a step gains,
        in ns.
        """
        chosen, gains = list(executions), []
        for rank in self.ranks:
            compute = np.array([not is_collective(name) for name in rank.name])
            long = rank.end - rank.start >= 10 * parts
            rows = np.flatnonzero(np.isin(rank.execution, chosen) & compute & long)
            more = (parts - 1) * gap_ns
            length = (rank.end - rank.start) // parts
            by = more * np.searchsorted(
                np.sort(rank.end[rows]), rank.start, side="right"
            )
            rank.start += by
            rank.end += by
            rank.end[rows] = rank.start[rows] + length[rows]
            for row in rows.tolist():
                begins = [
                    int(rank.start[row]) + number * (int(length[row]) + gap_ns)
                    for number in range(1, parts)
                ]
                rank.added += [
                    (int(rank.rows[row]), at, at + int(length[row]), {})
                    for at in begins
                ]
            gains.append(len(rows) / len(chosen) * more)
        return float(np.mean(gains))

    def insert(self, module: str, ns: int, executions: Iterable[int]) -> None:
        """Another module runs one kernel right behind these executions, on all ranks."""
        for rank in self.ranks:
            for execution in executions:
                rows = rank.of(execution)
                end = int(rank.end[rows].max())
                rank.shift(end, ns)
                rank.added.append(
                    (
                        int(rank.rows[rows[-1]]),
                        end,
                        end + ns,
                        {"module": module, "number": execution},
                    )
                )

    def copy(self, ns: int, at: float, executions: Iterable[int]) -> None:
        """A copy from the host runs alone at a share of these executions, in the thunk of the
        kernel before it.
        """
        for rank in self.ranks:
            for execution in executions:
                alone = self._alone(rank, execution, at)
                begin = int(rank.end[alone - 1])
                rank.shift(begin, ns)
                rank.added.append(
                    (int(rank.rows[alone - 1]), begin, begin + ns, {"copy": True})
                )

    def contending_copy(
        self, kernels: int, factor: float, at: float, executions: Iterable[int]
    ) -> float:
        """A copy outside of instructions runs next to some compute kernels, which take longer.

        Returns:
            What such an execution gains, in ns, mean over executions and ranks.
        """
        gains = []
        for rank in self.ranks:
            for execution in executions:
                first = self._alone(rank, execution, at)
                rows = rank.of(execution)
                behind = rows[rows >= first].tolist()
                chosen = [row for row in behind if not is_collective(rank.name[row])]
                gained = 0
                for row in chosen[:kernels]:
                    by = round((rank.end[row] - rank.start[row]) * (factor - 1))
                    rank.lengthen(row, by)
                    gained += by
                begin = int(rank.start[first])
                end = int(rank.end[chosen[kernels - 1]])
                values = {"copy": True, "outside": True}
                rank.added.append((int(rank.rows[first]), begin, end, values))
                gains.append(gained)
        return float(np.mean(gains))

    def rename(self, name: str, kernel: str) -> None:
        """The kernels of an instruction have another name."""
        for rank in self.ranks:
            rank.renamed |= dict.fromkeys(
                np.flatnonzero((rank.name == name) & (rank.execution >= 0)).tolist(),
                kernel,
            )

    def write(self) -> list[Path]:
        """Write all ranks back."""
        for rank in self.ranks:
            _write(rank)
        return self.paths

    def edit(
        self, change: Callable[[sqlite3.Connection], None], rank: int | None = None
    ) -> None:
        """Change the tables themselves, of one rank or all."""
        for one in self.ranks if rank is None else [self.ranks[rank]]:
            with closing(sqlite3.connect(one.path)) as file, file:
                change(file)


def twice(file: sqlite3.Connection) -> None:
    """Every kernel, call and range is recorded twice."""
    for table in (KERNELS, CALLS, RANGES):
        file.execute(f"insert into {table} select * from {table}")


def kernels_twice(file: sqlite3.Connection) -> None:
    file.execute(f"insert into {KERNELS} select * from {KERNELS}")


def repeat(
    path: Path, main: str, times: int, jitter: float = 0.0, seed: int = 0
) -> None:
    """Append copies of the last execution of the main module, each with kernels longer by up to a
    share.
    """
    chance = np.random.default_rng(seed)
    with closing(sqlite3.connect(path)) as file, file:
        begin, end = max(
            row[:2]
            for row in file.execute(
                f"select n.start, n.end, n.globalTid, coalesce(n.text, s.value) from {RANGES} n "
                "left join StringIds s on s.id = n.textId"
            )
            if (match := MODULE.match(row[3] or "")) and match[1] == main
        )
        calls = file.execute(
            f"select * from {CALLS} where start between ? and ?", (begin, end)
        ).fetchall()
        columns = [row[1] for row in file.execute(f"pragma table_info({CALLS})")]
        at = columns.index("correlationId")
        ids = {row[at] for row in calls}
        kernel_columns = [
            row[1] for row in file.execute(f"pragma table_info({KERNELS})")
        ]
        kernels = [
            row
            for row in file.execute(f"select * from {KERNELS} order by start")
            if row[kernel_columns.index("correlationId")] in ids
        ]
        ranges = file.execute(
            f"select * from {RANGES} where start >= ? and start <= ?", (begin, end)
        ).fetchall()
        range_columns = [row[1] for row in file.execute(f"pragma table_info({RANGES})")]
        first, last = min(row[0] for row in kernels), max(row[1] for row in kernels)
        period = max(last, end) - min(first, begin) + 4_000_000
        for table in (
            KERNELS,
            CALLS,
            RANGES,
        ):  # what ran behind the last execution still does
            file.execute(
                f"update {table} set start = start + ?1, end = end + ?1 where start >= ?2",
                (period * times, max(last, end)),
            )
        for number in range(1, times + 1):
            factor = 1 + jitter * chance.standard_normal()

            tables = (
                (CALLS, columns, calls),
                (KERNELS, kernel_columns, kernels),
                (RANGES, range_columns, ranges),
            )
            for table, names, rows in tables:
                stretch, by = factor if table == KERNELS else 1.0, period * number
                _insert(
                    file,
                    table,
                    [
                        _moved(row, names, first, by, stretch, AHEAD * number)
                        for row in rows
                    ],
                )


def _moved(
    row: Sequence[Any],
    names: Sequence[str],
    first: int,
    by: int,
    stretch: float,
    ids: int,
) -> list[Any]:
    """A row at another time, its distance from `first` stretched, with another correlation id."""
    found = dict(zip(names, row, strict=True))
    for name in ("start", "end"):
        if found[name] is not None:
            found[name] = by + first + round((found[name] - first) * stretch)
    if "correlationId" in found:
        found["correlationId"] += ids
    return list(found.values())


def _insert(
    file: sqlite3.Connection, table: str, rows: Sequence[Sequence[object]]
) -> None:
    if rows:
        file.executemany(
            f"insert into {table} values ({', '.join('?' * len(rows[0]))})", rows
        )


@cache
def _read(path: Path, main: str) -> tuple[np.ndarray, ...]:
    """Number, start, end, stream, instruction and execution of each kernel; -1: of none, or of
    another module's.
    """
    with closing(sqlite3.connect(path)) as file:
        texts = file.execute(
            f"select n.start, n.end, n.globalTid, coalesce(n.text, s.value) from {RANGES} n "
            "left join StringIds s on s.id = n.textId where n.end is not null order by n.start"
        ).fetchall()
        modules = [
            (a, b, m[1]) for a, b, _, text in texts if (m := MODULE.match(text or ""))
        ]
        thunks = [
            (a, b, m[1]) for a, b, _, text in texts if (m := THUNK.match(text or ""))
        ]
        runs = [(a, b) for a, b, name in modules if name == main]
        kernels = file.execute(
            f"select k.rowid, k.start, k.end, k.streamId, r.start from {KERNELS} k join {CALLS} r "
            "on r.correlationId = k.correlationId order by k.start"
        ).fetchall()
    rows, start, end, stream, called = (
        np.array(column, np.int64) for column in zip(*kernels, strict=True)
    )
    begins = np.array([a for a, *_ in thunks])
    inside = np.searchsorted(begins, called, side="right") - 1
    names = np.array(
        [
            thunks[at][2] if at >= 0 and called[row] <= thunks[at][1] else ""
            for row, at in enumerate(inside)
        ]
    )
    execution = np.full(len(rows), -1)
    for number, (a, b) in enumerate(runs):
        execution[(called >= a) & (called <= b) & (names != "")] = number
    return rows, start, end, stream, names, execution


def _write(rank: Rank) -> None:
    with closing(sqlite3.connect(rank.path)) as file, file:
        file.executemany(
            f"update {KERNELS} set start = ?, end = ? where rowid = ?",
            zip(
                rank.start.tolist(), rank.end.tolist(), rank.rows.tolist(), strict=True
            ),
        )
        columns = [row[1] for row in file.execute(f"pragma table_info({KERNELS})")]
        correlation = columns.index("correlationId")
        for number, (like, start, end, values) in enumerate(rank.added):
            row = list(
                file.execute(
                    f"select * from {KERNELS} where rowid = ?", (like,)
                ).fetchone()
            )
            row[columns.index("start")], row[columns.index("end")] = start, end
            if "module" in values:
                row[correlation] = _launch(
                    file, row[correlation], str(values["module"]), AHEAD + number
                )
            if "copy" in values:
                kernel = dict(zip(columns, row, strict=True))
                _copy(file, kernel, AHEAD + number, outside="outside" in values)
            else:
                _insert(file, KERNELS, [row])
        ids = {}
        for name in sorted(set(rank.renamed.values())):
            ids[name] = file.execute("select max(id) + 1 from StringIds").fetchone()[0]
            file.execute("insert into StringIds values (?, ?)", (ids[name], name))
        for place, name in rank.renamed.items():
            number = ids[name]
            file.execute(
                f"update {KERNELS} set shortName = ?, demangledName = ? where rowid = ?",
                (number, number, int(rank.rows[place])),
            )


COPY_COLUMNS = (
    "start",
    "end",
    "deviceId",
    "contextId",
    "streamId",
    "correlationId",
    "globalPid",
    "bytes",
    "copyKind",
)


OWN_STREAM = 99


def _copy(
    file: sqlite3.Connection,
    kernel: dict[str, Any],
    correlation: int,
    *,
    outside: bool = False,
) -> None:
    """A transfer in a kernel's place, launched by a call of its own at the time of the kernel's.

    Args:
        outside: of all ranges, and on a stream of its own.
    """
    table = "CUPTI_ACTIVITY_KIND_MEMCPY"
    file.execute(
        f"create table if not exists {table} ({', '.join(f'{name} INTEGER' for name in COPY_COLUMNS)})"
    )
    names = [row[1] for row in file.execute(f"pragma table_info({CALLS})")]
    call = list(
        file.execute(
            f"select * from {CALLS} where correlationId = ?", (kernel["correlationId"],)
        ).fetchone()
    )
    call[names.index("correlationId")] = correlation
    if outside:
        call[names.index("start")], call[names.index("end")] = 10, 20
        kernel = kernel | {"streamId": OWN_STREAM}
    _insert(file, CALLS, [call])
    values = kernel | {"correlationId": correlation, "bytes": 1 << 20, "copyKind": 1}
    _insert(file, table, [[values[name] for name in COPY_COLUMNS]])


def clock_moved(by_ns: int) -> Callable[[sqlite3.Connection], None]:
    """Every time is later."""

    def change(file: sqlite3.Connection) -> None:
        for table in (KERNELS, CALLS, RANGES):
            file.execute(
                f"update {table} set start = start + {by_ns}, end = end + {by_ns}"
            )

    return change


def other_process(number: int) -> Callable[[sqlite3.Connection], None]:
    """Process and threads have other ids: pid 24 bits from bit 24 on, as nsys packs them."""

    def change(file: sqlite3.Connection) -> None:
        by = number << 24
        file.execute(f"update {KERNELS} set globalPid = globalPid + {by}")
        for table in (CALLS, RANGES, "ThreadNames"):
            file.execute(f"update {table} set globalTid = globalTid + {by}")

    return change


def _launch(file: sqlite3.Connection, like: int, module: str, correlation: int) -> int:
    """A module range with one thunk and one call behind the range that a call is in."""
    call = list(
        file.execute(
            f"select * from {CALLS} where correlationId = ?", (like,)
        ).fetchone()
    )
    names = [row[1] for row in file.execute(f"pragma table_info({CALLS})")]
    tid = call[names.index("globalTid")]
    range_names = [row[1] for row in file.execute(f"pragma table_info({RANGES})")]
    text = "coalesce(n.text, (select value from StringIds s where s.id = n.textId)) like 'XlaModule:%'"
    found = file.execute(
        f"select * from {RANGES} n where {text} and start <= ? order by start desc limit 1",
        (call[0],),
    ).fetchone()
    end = int(found[range_names.index("end")])
    for what, a, b in (
        (f"XlaModule:#hlo_module={module},program_id=77#", end + 1000, end + 5000),
        ("Thunk:#hlo_op=fusion.1#", end + 2000, end + 4000),
    ):
        row = list(found)
        row[range_names.index("start")], row[range_names.index("end")] = a, b
        row[range_names.index("text")], row[range_names.index("textId")] = what, None
        row[range_names.index("globalTid")] = tid
        _insert(file, RANGES, [row])
    call[names.index("start")], call[names.index("end")] = end + 2500, end + 3000
    call[names.index("correlationId")] = correlation
    _insert(file, CALLS, [call])
    return correlation
