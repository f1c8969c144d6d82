"""The largest value of a varied name that fits into memory, found by bisection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pgle.scale.plan import Trial
from pgle.scale.row import Row


@dataclass(frozen=True, eq=False)
class Fit:
    """Trials that differ in the fitted value alone, from the least memory to the most."""

    trials: tuple[Trial, ...]
    low: int = 0  # all before it fit
    high: int = 0  # it and all behind it do not fit; 0: the last was not tried yet
    rows: Mapping[int, Row] = field(default_factory=dict)  # that were made, by place

    @property
    def at(self) -> int:
        """The place that is tried next: the last one first, since most programs fit."""
        return len(self.trials) - 1 if not self.rows else (self.low + self.high) // 2

    @property
    def done(self) -> bool:
        """Whether nothing is left to try."""
        return bool(self.rows) and self.low >= self.high

    @property
    def next(self) -> Trial:
        """The trial to make now."""
        return self.trials[self.at]

    def tried(self, row: Row) -> Fit:
        """The knowledge after a row; one without a step counts as one that does not fit."""
        at, rows = self.at, {**self.rows, self.at: row}
        is_fit = not row.failure and row.fits is not False
        high = self.high if self.rows else len(self.trials)
        return replace(self, rows=rows, low=at + 1 if is_fit else self.low, high=high if is_fit else at)

    def result(self, name: str) -> Row:
        """The row of the last value that fits, else of the first value; with the memory of all that were tried."""
        row = self.rows[self.low - 1 if self.low else 0]
        tried = {dict(self.trials[at].values)[name]: item.memory_bytes for at, item in sorted(self.rows.items())}
        return replace(row, fitted=name, tried=tried)


def fits(trials: Sequence[Trial], name: str) -> list[Fit]:
    """Trials in groups that differ in one value alone, which stay in their order."""
    found: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        others = tuple(pair for pair in trial.values if pair[0] != name)
        found.setdefault((trial.devices, others), []).append(trial)
    return [Fit(tuple(group)) for group in found.values()]
