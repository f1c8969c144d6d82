"""`pgle ranks` as a function: find where ranks start their collectives in different orders. The
input is the dumps, a run directory or the logs of several ranks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from pgle.errors import UserError, some
from pgle.files import AnyPath, check_exists, content_digest, open_bytes
from pgle.run.confirm import (
    LOG_SUFFIXES,
    TEXT_SUFFIXES,
    check_log,
    logs_in,
    rank_labels,
)
from pgle.run.directory.directory import RankFiles, RunDirectory, StageFolder, stage_of
from pgle.run.directory.facts import HookFacts, read_facts
from pgle.schedule.launch_order import launch_order
from pgle.schedule.launches import (
    Difference,
    Launches,
    cause_of,
    differences,
    explained,
)
from pgle.schedule.nccl_log import NCCL_MARK, nccl_orders
from pgle.xla.flags.shared import shared_settings
from pgle.xla.flags.text import parse_flags
from pgle.xla.hlo.dumps import is_hlo, read_modules
from pgle.xla.hlo.module import Module
from pgle.xla.log.read import LineKind, RankLog, collect, read_events

ONE_RANK = (
    "what one process left, which starts its collectives in one order on all its GPUs"
)
NAME_OTHERS = (
    "of several processes name the dumps or logs of each, or their run directory"
)


@dataclass
class Rank:
    """The files and facts of one rank."""

    dumps: list[AnyPath] = field(default_factory=list)
    logs: list[AnyPath] = field(default_factory=list)
    facts: HookFacts = field(default_factory=HookFacts)  # facts from the hook
    # launches by module name and number of the compilation
    orders: dict[tuple[str, int], Launches] = field(default_factory=dict)
    # possible causes of a difference, most likely first
    causes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RankDifference:
    """A place where ranks disagree, with the reason."""

    module: str
    place: Difference
    cause: str


@dataclass(frozen=True)
class Ranks:
    """Whether all ranks start their collectives in the same order."""

    ranks: tuple[str, ...]
    # in the largest module that was compared; 0: no module was compared
    collectives: int
    differences: tuple[RankDifference, ...]
    unknown: tuple[str, ...]  # one clause per fact that the files leave unknown
    stuck: tuple[str, ...]  # places at which ranks wait, by their logs
    notes: tuple[str, ...]  # assumptions of the comparison

    @property
    def ok(self) -> bool:
        """Whether all ranks are known to agree."""
        return not self.differences and not self.unknown


def compare_ranks(paths: Sequence[AnyPath]) -> Ranks:
    """Compare the ranks in dumps, run directories and logs, module by module."""
    ranks = _gather(paths)
    stuck: list[str] = []
    damaged: list[str] = []
    for label, rank in list(ranks.items()):
        for path in rank.dumps:
            try:
                _read_dumps(rank, path)
            except UserError as error:
                # a job that ends during a dump leaves a truncated file
                damaged.append(f"rank {label}: {error.what}")
        _know_facts(rank)
        for path in rank.logs:
            stuck += _read_log(ranks, path, label)
    logged = nccl_orders(_nccl_lines(ranks))
    is_only_log = any(rank.logs and not rank.orders for rank in ranks.values())
    if len(ranks) < 2 and not logged and not is_only_log:
        raise UserError(ONE_RANK, where=paths[0], remedy=NAME_OTHERS)
    found, compared = _compared(ranks)
    found += _logged_differences(logged)
    sizes = [len(order.starts) for order in (*compared, *logged.values())]
    return Ranks(
        ranks=tuple(logged or ranks),
        collectives=max(sizes, default=0),
        differences=tuple(found),
        unknown=() if logged else (*damaged, *_unknown(ranks)),
        stuck=tuple(stuck),
        notes=tuple(_notes(ranks, compared)),
    )


# Find what each path holds.


def _gather(paths: Sequence[AnyPath]) -> dict[str, Rank]:
    """Return the files of each rank, by its label."""
    ranks: dict[str, Rank] = {}
    dumps: list[AnyPath] = []
    logs: list[AnyPath] = []
    for path in paths:
        check_exists(path)
        stage = _stage(path)
        for number, files in stage.items():
            ranks[str(number)] = _of_stage(files)
        if stage:
            continue
        if not path.is_dir():
            if not is_hlo(path):
                check_log(path, may_be_empty=True)
            (dumps if is_hlo(path) else logs).append(path)
            continue
        own, inner, listed = _in_folder(path)
        dumps += own or inner
        logs += listed
        if not own and not inner and not listed:
            raise UserError(
                "holds no dumps and no logs",
                where=path,
                remedy="give folders of --xla_dump_to, logs, or a run directory",
            )
    found = [str(path) for path in (*dumps, *logs)]
    shared = os.path.commonpath(found) if len(found) > 1 else "."
    for label, path in _labelled(dumps, shared):
        ranks.setdefault(label, Rank()).dumps.append(path)
    for label, path in _labelled(logs, shared):
        ranks.setdefault(label, Rank()).logs.append(path)
    return ranks


def _labelled(paths: Sequence[AnyPath], shared: str) -> Iterable[tuple[str, AnyPath]]:
    """Return each path with the number that distinguishes it, else with the part that the paths do
    not share.
    """
    names = [os.path.relpath(str(path), shared) for path in paths]
    labels = rank_labels(names)
    if len(names) == 1 and (number := re.search(r"rank\D?(\d+)", names[0])):
        labels = [str(int(number[1]))]
    return zip(labels, paths, strict=True)


def _stage(path: AnyPath) -> dict[int, RankFiles]:
    """Return the ranks of the stage that a path names; of a run directory, the ranks of its last
    stage.
    """
    if not isinstance(path, Path):
        return {}
    if RunDirectory(path).is_recorded:
        for name in ("perf", "baseline", "profile"):
            if ranks := _ranks_of(RunDirectory(path).stage(name)):
                return ranks
    stage = stage_of(path)
    return {} if stage is None else _ranks_of(stage)


def _ranks_of(stage: StageFolder) -> dict[int, RankFiles]:
    """Return the ranks with a log or dumps. A launcher of many ranks writes a single log."""
    found = dict(stage.ranks_with_log())
    for folder in sorted(stage.path.glob("hlo.rank*")):
        number = folder.name.removeprefix("hlo.rank")
        if number.isdecimal():
            found.setdefault(int(number), stage.rank(int(number)))
    return found


def _of_stage(files: RankFiles) -> Rank:
    dumps: list[AnyPath] = [files.hlo] if files.hlo.is_dir() else []
    logs: list[AnyPath] = [files.log] if files.log.is_file() else []
    return Rank(dumps, logs, read_facts(files))


def _in_folder(folder: AnyPath) -> tuple[list[AnyPath], list[AnyPath], list[AnyPath]]:
    """Return the folder itself if it holds dumps, its subfolders with dumps, and its logs."""
    items = sorted(folder.iterdir(), key=str)
    folders = [item for item in items if item.is_dir()]
    inner = [item for item in folders if any(map(is_hlo, item.iterdir()))]
    if any(is_hlo(item) and "module_" in item.name for item in items):
        return [folder], inner, []
    logs = logs_in(folder, LOG_SUFFIXES) or logs_in(folder, TEXT_SUFFIXES)
    return [], inner, logs


# Read the files of a rank.


def _read_dumps(rank: Rank, path: AnyPath) -> None:
    for module in read_modules(path):
        if not module.is_scheduled:
            continue
        order = launch_order(module)
        if order.starts:
            number = sum(name == module.name for name, _ in rank.orders)
            rank.orders[module.name, number] = order
            rank.causes.update(_beside(module))


def _beside(module: Module) -> dict[str, str]:
    """Return facts that XLA dumped with a module and that may explain a difference."""
    found = {}
    source = Path(module.source)
    stem = re.sub(r"\.(sm_|cpu_|gpu_|before|after).*", "", source.name)
    if "_after_optimizations" in source.name:
        found["GPU"] = source.name.removeprefix(stem).split("_after")[0].strip(".")
    results = source.with_name(f"{stem}.autotune_results.pbtxt")
    if results.is_file():
        found["autotuning"] = f"sha256 {content_digest(results)[0][:12]}…"
    options = source.with_name(f"{stem}.debug_options")
    if options.is_file():
        text = options.read_text("utf-8", "replace")
        pairs = re.findall(r"^(\w+): (.*)$", text, re.M)
        found |= shared_settings(dict(pairs))
    return found


def _know_facts(rank: Rank) -> None:
    """Add the hook's facts to a rank."""
    versions = rank.facts.get("versions", {})
    noted = {name: text for name, text in versions.items() if name.startswith("jax")}
    if kind := rank.facts.get("device_kind"):
        noted["GPU"] = kind
    flags = parse_flags(str(rank.facts.get("xla_flags", ""))).effective()
    rank.causes = {**noted, **rank.causes, **shared_settings(flags)}


def _read_log(ranks: dict[str, Rank], path: AnyPath, label: str) -> list[str]:
    """Add to `ranks` what a log says about a profile and the compilation cache.

    Args:
        ranks: the ranks by label. A log whose lines all name ranks adds these ranks.
        path: the log.
        label: the rank of lines that name no rank.

    Returns:
        Lines of the log which say that ranks wait or ended.
    """
    with open_bytes(path) as stream:
        whole = collect(read_events(stream, rank=label))
    if whole.ranks and label not in whole.ranks:
        _refile(ranks, label, next(iter(whole.ranks)))
    stuck = [f"rank {rank}: {event.text}" for rank, event in whole.ends.items()]
    for name, log in whole.ranks.items():
        _note_log(ranks.setdefault(name, Rank()), log)
        if event := log.lines.get(LineKind.STUCK):
            stuck.append(f"rank {name}: {event.text}")
    return stuck


def _refile(ranks: dict[str, Rank], label: str, named: str) -> None:
    """Give a rank without dumps the label that its log names."""
    rank = ranks.get(label, Rank())
    if not rank.orders:
        ranks.pop(label, None)
        ranks.setdefault(named, rank)


def _note_log(rank: Rank, log: RankLog) -> None:
    """Add what a rank's log says about a profile and the compilation cache."""
    blocks = list(log.last.values())
    if blocks:
        took = any(block.took_profile for block in blocks)
        rank.causes["what XLA says of a profile"] = "used" if took else "not used"
        read = next((block.profile for block in blocks if block.profile), "")
        rank.causes.setdefault("the profile", read)
    if log.cache_hits:
        rank.causes["the compilation cache"] = "hit"


def _nccl_lines(ranks: Mapping[str, Rank]) -> Iterator[str]:
    for rank in ranks.values():
        for path in rank.logs:
            with open_bytes(path) as stream:
                for line in stream:
                    if NCCL_MARK in line:
                        yield line.decode("utf-8", "replace")


# Compare the ranks.


def _compared(
    ranks: Mapping[str, Rank],
) -> tuple[list[RankDifference], list[Launches]]:
    """Return the differences in all modules that several ranks have, and the launches that were
    compared.
    """
    found: list[RankDifference] = []
    compared: list[Launches] = []
    causes = {label: rank.causes for label, rank in ranks.items()}
    for key in _modules(ranks):
        having = {label: rank for label, rank in ranks.items() if key in rank.orders}
        orders = {label: rank.orders[key] for label, rank in having.items()}
        compared += orders.values()
        placed = _placed(ranks, next(iter(orders.values())).devices)
        for place in differences(orders, placed):
            cause = explained(place, causes)
            found.append(RankDifference(key[0], place, cause))
    return found, compared


def _logged_differences(logged: Mapping[str, Launches]) -> Iterator[RankDifference]:
    """Yield the differences in NCCL's log.

    Args:
        logged: the launches of each rank.
    """
    placed = {rank: [place] for place, rank in enumerate(logged)}
    for place in differences(logged, placed):
        collective = next(filter(None, (side.collective for side in place.sides)))
        cause = f"{collective.label} in NCCL's log"
        yield RankDifference("NCCL", place, cause)


def _modules(ranks: Mapping[str, Rank]) -> dict[tuple[str, int], None]:
    """Return the modules of all ranks, in order."""
    orders = (rank.orders for rank in ranks.values())
    return dict.fromkeys(chain.from_iterable(orders))


def _placed(ranks: Mapping[str, Rank], devices: int) -> dict[str, Sequence[int]]:
    """Return the devices of each rank; empty if the number of devices per rank is unknown.

    JAX numbers devices process by process; a mesh may order them differently.
    """
    placed: dict[str, Sequence[int]] = {}
    for place, (label, rank) in enumerate(ranks.items()):
        each = rank.facts.get("local_devices") or 0
        number = rank.facts.get("process_index", place)
        if not each and devices == len(ranks):
            each = 1
        if each * (number + 1) <= devices:
            placed[label] = range(number * each, (number + 1) * each)
    return placed


def _notes(ranks: Mapping[str, Rank], compared: Sequence[Launches]) -> Iterator[str]:
    """Yield the assumptions about the modules that were compared."""
    devices = max((order.devices for order in compared), default=0)
    if devices and not all(_placed(ranks, devices).get(label) for label in ranks):
        yield "which GPUs a rank has is not known: every group counts as shared by all"
    if any(order.is_cut for order in compared):
        yield "a loop of unknown or enormous length counts as a part of itself"


def _unknown(ranks: Mapping[str, Rank]) -> Iterator[str]:
    """Yield the facts that the files leave unknown."""
    have = {label for label, rank in ranks.items() if rank.orders}
    if not have:
        yield "no rank has a dump with collectives: the order is unknown"
        (first, one), *others = ranks.items()
        for label, rank in others:
            if cause := cause_of(one.causes, rank.causes):
                yield f"ranks {first} and {label} may differ: {cause}"
    else:
        for key in _modules(ranks):
            lacking = [name for name, rank in ranks.items() if key not in rank.orders]
            if lacking:
                which = some(lacking, 4)
                yield f"no dump of {key[0]} from rank {which}: its order is unknown"
    counts = [int(rank.facts.get("process_count", 0)) for rank in ranks.values()]
    missing = max(counts, default=0) - len(ranks)
    if missing > 0:
        yield f"{missing} of {max(counts)} ranks have left nothing"
