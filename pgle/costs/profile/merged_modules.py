"""What the sidecars of several profiles say of their modules, as one: executions, devices, and the ranks that lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_COUNTS = {"executions_used": 0, "executions_seen": 0, "devices": 0}
"""Of a module's record, what adds up over inputs."""
IDS_SHOWN = 8


def united_modules(provenances: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """The first record of each module, with fingerprints and ranks united and executions added up."""
    modules: dict[str, dict[str, Any]] = {}
    unknown = set()
    for record in _records(provenances):
        name = str(record.get("name"))
        known = modules.setdefault(name, {**record, "fingerprints": [], "rank_ids": []} | _COUNTS)
        known["fingerprints"] += [one for one in record["fingerprints"] if one not in known["fingerprints"]]
        for count in _COUNTS:
            known[count] += _number(record, count)
        known["ranks"] = max(_number(known, "ranks"), _number(record, "ranks"))
        ids = _ids(record)
        known["rank_ids"] = sorted({*known["rank_ids"], *ids})
        if not ids:
            unknown.add(name)
        known.pop("executions_dropped", None)
    for name in unknown:
        modules[name]["rank_ids"] = []
    return tuple(modules.values())


def missing_ranks(provenances: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line per module that some of its ranks recorded: what a collective costs then includes waiting for the others.

    Ranks are told by JAX's global device ids, where all inputs have them, else each device counts as a rank.
    """
    lines = []
    for record in united_modules(provenances):
        ids = record["rank_ids"]
        present = len(ids) or record["devices"]
        needed = record["ranks"] or (2 if _number(record, "collectives") else 0)
        if not 0 < present < needed:
            continue
        which = f" ({', '.join(map(str, ids[:IDS_SHOWN]))}{', …' if len(ids) > IDS_SHOWN else ''})" if ids else ""
        lines.append(
            f"{record['name']}: {present} of {record['ranks'] or 'several'} ranks given{which}, so a collective "
            "includes the wait for a rank that is not; merge the profiles of all ranks"
        )
    return lines


def _records(provenances: Iterable[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    for provenance in provenances:
        records = provenance.get("modules")
        for record in records if isinstance(records, list) else ():
            if isinstance(record, dict) and isinstance(record.get("fingerprints"), list):
                yield record


def _number(record: Mapping[str, Any], name: str) -> int:
    value = record.get(name)
    return value if isinstance(value, int) else 0


def _ids(record: Mapping[str, Any]) -> list[int]:
    value = record.get("rank_ids")
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
