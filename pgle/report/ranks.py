"""The page and the JSON of `pgle ranks`."""

from __future__ import annotations

from collections.abc import Iterator

from pgle.errors import many, shown
from pgle.next import Commands, to_way
from pgle.report.page.value import Advice, Page, Tone
from pgle.report.text import Document
from pgle.run.ranks import RankDifference, Ranks
from pgle.schedule.launches import HANG, line_of

_DUMP = Advice(
    "Start every rank with dumps in a folder of its own",
    command="--xla_dump_to=DIR/rank$RANK --xla_dump_hlo_as_proto",
)
_SHARE = Advice(
    "Give every rank the same jaxlib, flags, profile and autotuning results",
    why="docs/guides/when-a-job-hangs.md",
)


def ranks_page(names: str, found: Ranks, following: Commands) -> Page:
    """Show the verdict, a line for each difference, what is unknown, and the next commands."""
    count = len(found.ranks)
    size = many(found.collectives, "collective")
    verdict = f"All {count} ranks start their collectives in the same order ({size})"
    tone: Tone = "good"
    actions: tuple[Advice, ...] = ()
    if found.differences:
        verdict = f"Ranks start their collectives in different orders: {_effect(found)}"
        tone = "bad"
        actions = (_SHARE,)
    elif found.unknown:
        verdict = "Cannot tell whether the ranks start their collectives in one order"
        tone = "warn"
        actions = (_DUMP,)
    return Page(
        title=f"pgle ranks {names}",
        identity=(names, many(count, "rank")),
        verdict=verdict,
        tone=tone,
        notes=tuple(map(shown, _notes(found))),
        actions=actions,
        way=to_way(following),
    )


def _effect(found: Ranks) -> str:
    hangs = any(item.place.effect == HANG for item in found.differences)
    return "the job could hang" if hangs else "the job could mix data"


def _notes(found: Ranks) -> Iterator[str]:
    for item in found.differences:
        yield f"{item.module}: {line_of(item.place, item.cause)}"
    yield from found.unknown
    yield from found.stuck
    if found.stuck and found.ok:
        yield "the order is not why the ranks wait: look for one that ended, or is slow"
    yield from found.notes


class RankDifferenceDocument(Document):
    """A place at which ranks differ, with a list for each side."""

    module: str
    effect: str
    ranks: tuple[tuple[str, ...], ...]
    communicator: tuple[int, ...]
    position: int
    collectives: tuple[str, ...]
    cause: str


class RanksDocument(Document):
    """``pgle.ranks/1``."""

    ok: bool
    ranks: tuple[str, ...]
    collectives: int
    differences: tuple[RankDifferenceDocument, ...]
    unknown: tuple[str, ...]
    stuck: tuple[str, ...]
    warnings: tuple[str, ...]


def ranks_document(found: Ranks) -> RanksDocument:
    """Whether the ranks agree, and where they do not."""
    return RanksDocument.of_value(
        found,
        differences=tuple(map(_record, found.differences)),
        warnings=found.notes,
    )


def _record(item: RankDifference) -> RankDifferenceDocument:
    place = item.place
    return RankDifferenceDocument.of_value(
        place,
        module=item.module,
        ranks=tuple(side.ranks for side in place.sides),
        collectives=tuple(str(side.collective or "") for side in place.sides),
        cause=item.cause,
    )
