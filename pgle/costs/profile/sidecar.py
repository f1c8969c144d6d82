"""The sidecar of a profile, ``PROFILE.json``: what the profile file itself has no room for.

    {"schema": "pgle.profile/1", "sha256": of the profile file,
     "provenance": {…}, "warnings": […],
     "ends": [{"module": "jit_step", "collectives": ["all-gather-start.1", "all-reduce-start"],
               "utc_ns": 1751460000000000000, "ns": [[0, 812500], [130001200, 130813100]]}],
     "costs": [{"name": "all-gather-start.1", "kind": "collective", "opcode": "all-gather", "shape": "bf16[4096,512]",
                "samples": 18, "min_us": 801.2, "max_us": 830.9, "spread": 0.02, "trace_name": "all-gather.4",
                "origin": "measured",
                "occurrences": {"2.0": 812.5, "3.0": 811.02}}, …]}

One record per entry of the profile, in its order, one per line; what is unknown (empty or 0) is left out. ``origin`` is
always there. ``slowest_us`` (compute only, optional) is `Cost.slowest_us`, ``occurrences`` (collectives only, optional)
what `Profile.occurrences` has of the name. ``ends`` is `Profile.ends`, one record per process, with ``fingerprint``,
``groups`` and ``first`` where they are not empty or 0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any

from pgle.costs.profile.text import Entry
from pgle.costs.profile.value import MAX_COST_US, Cost, CostKind, Ends, Origin, Profile
from pgle.files import sha256

SCHEMA = "pgle.profile/1"

MOST_NS = 1 << 53  # a longer recording is none: doubles hold whole numbers up to this
MOST_SAMPLES = 1 << 40  # nobody measured an instruction more often; sums over all ranks stay within 64 bits

_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=str)
_BETWEEN = '}, {"name": '
"""The text between records. It occurs nowhere else: inside a text the quotes would be escaped."""
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_KINDS = {kind.value: kind for kind in CostKind}
_ORIGINS = {origin.value: origin for origin in Origin}
_OF_COST = slice(Cost._fields.index("opcode"), Cost._fields.index("origin"))  # what a record has where it is known
_MEASURED = Cost._fields[_OF_COST]
_KEY = re.compile(r"(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})(\.[1-9]\d{0,8})?", re.ASCII)
_COUNTS = ("program_id", "executions_used", "executions_seen", "devices", "ranks", "names", "collectives")
_MODULE: Mapping[str, Any] = {
    "name": str,
    "fingerprints": [str],
    "rank_ids": [int],
    "hlo": bool,
    "executions_dropped": {"": str},
    **dict.fromkeys(_COUNTS, int),
    "step_us": float,
    "launch": {"kernels": {"": float}, "origin": str, "": float},
    "contention": {"": {"": float}},
}
_PROVENANCE: Mapping[str, Any] = {
    **dict.fromkeys(("tool", "stat", "collective_stat", "xla_flags"), str),
    "inputs": [{"name": str, "format": str, "version": str}],
    "modules": [_MODULE],
    "completed": [{}],
}
"""What later code takes for granted of a provenance: the type of the value that a key has, where it has one. ``""`` is
any other key; a list is of what its one item says; a float is finite and not negative."""
_DAMAGE = (TypeError, ValueError, AttributeError, KeyError, OverflowError)


class SidecarError(ValueError):
    """The sidecar cannot be used; the message says why."""


def sidecar(profile: Profile, data: bytes) -> str:
    """The sidecar of a profile as JSON text. Equal input gives equal text.

    Args:
        profile: what was encoded.
        data: the bytes of the profile file.
    """
    head = {
        "schema": SCHEMA,
        "sha256": sha256(data),
        "provenance": profile.provenance,
        "warnings": list(profile.warnings),
    }
    lines = _lines([_record(cost, profile.occurrences) for cost in profile.costs])
    text = json.dumps(_finite(head), ensure_ascii=False, indent=2, allow_nan=False, default=str)
    found = [_ends_record(fingerprint, one) for fingerprint, ends in profile.ends.items() for one in ends]
    ends = ",\n".join(f"    {_COMPACT.encode(record)}" for record in found)
    ends = f'  "ends": [\n{ends}\n  ],\n' if found else ""
    return f'{text[:-2]},\n{ends}  "costs": [\n{lines}\n  ]\n}}\n'


@dataclass(frozen=True)
class Sidecar:
    """A sidecar that belongs to its profile; of its records only the names are checked."""

    records: Sequence[Mapping[str, Any]]  # one per entry of the profile, in its order
    # provenance, warnings, ends: as in `Profile`
    provenance: Mapping[str, object]
    warnings: tuple[str, ...]
    ends: Mapping[str, tuple[Ends, ...]]


def read_sidecar(entries: Sequence[Entry], data: bytes, text: bytes) -> Sidecar:
    """The sidecar in `text`.

    Args:
        entries: of the profile.
        data: the bytes of the profile file.
        text: the bytes of the sidecar.

    Raises:
        SidecarError: it is no sidecar, or of another profile.
    """
    try:
        content = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise SidecarError("not JSON") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise SidecarError(f"not a sidecar of schema {SCHEMA}")
    if content.get("sha256") != sha256(data):
        raise SidecarError("describes another version of the profile (its sha256 differs)")
    records, provenance = content.get("costs"), content.get("provenance", {})
    warnings = content.get("warnings", [])
    if not isinstance(records, list) or not isinstance(provenance, dict) or not isinstance(warnings, list):
        raise SidecarError("damaged")
    try:
        if not _is_like(provenance, _PROVENANCE):
            raise ValueError("provenance")
        if [record["name"] for record in records] != [name for name, _ in entries]:
            raise ValueError("names")
        ends = _ends(content.get("ends", ()))
    except _DAMAGE:
        raise SidecarError("damaged") from None
    return Sidecar(records, provenance, tuple(map(str, warnings)), ends)


def described(costs: Iterable[Cost], sidecar: Sidecar) -> Profile:
    """The profile of these costs, in the order of its sidecar's records.

    Raises:
        SidecarError: a record is damaged.
    """
    try:
        return Profile(
            tuple(_described(cost, record) for cost, record in zip(costs, sidecar.records, strict=True)),
            sidecar.provenance,
            sidecar.warnings,
            {record["name"]: table for record in sidecar.records if (table := occurrences(record))},
            sidecar.ends,
        )
    except _DAMAGE:
        raise SidecarError("damaged") from None


def _is_like(value: object, like: Any) -> bool:
    """Whether a value of JSON is what `like` says; numbers and objects may be null."""
    if isinstance(like, list):
        return isinstance(value, list) and all(item is not None and _is_like(item, like[0]) for item in value)
    if value is None:
        return like not in (str, bool)
    if isinstance(like, Mapping):
        rest = like.get("", object)
        return isinstance(value, dict) and all(_is_like(item, like.get(key, rest)) for key, item in value.items())
    if like is float:
        return isinstance(value, int | float) and 0 <= value < math.inf
    return isinstance(value, like) and (like is not int or not isinstance(value, bool))


def _record(cost: Cost, occurrences: Mapping[str, Mapping[str, float]]) -> dict[str, object]:
    record: dict[str, object] = {"name": cost.full_name}
    if cost.kind:
        record["kind"] = cost.kind
    record |= {name: value for name, value in zip(_MEASURED, tuple(cost)[_OF_COST], strict=True) if value}
    record["origin"] = cost.origin
    if table := occurrences.get(cost.full_name):
        record["occurrences"] = dict(table)
    return record


def _described(cost: Cost, record: Mapping[str, Any]) -> Cost:
    slowest_us = record.get("slowest_us")
    return Cost(
        name=cost.name,
        cost_us=cost.cost_us,
        fingerprint=cost.fingerprint,
        kind=_KINDS[record.get("kind", "")],
        opcode=intern(str(record.get("opcode", ""))),
        shape=intern(str(record.get("shape", ""))),
        samples=_whole(record.get("samples", 0), MOST_SAMPLES),
        min_us=float(record.get("min_us", 0)),
        max_us=float(record.get("max_us", 0)),
        spread=float(record.get("spread", 0)),
        slowest_us=None if slowest_us is None else _time_us(slowest_us),
        trace_name=str(record.get("trace_name", "")),
        origin=_ORIGINS[record["origin"]],
    )


def occurrences(record: Mapping[str, Any]) -> dict[str, float]:
    """The table of a record. All of it is checked, since `merge` needs it.

    Raises:
        ValueError, TypeError, AttributeError: it is damaged.
    """
    table = {key: _time_us(value) for key, value in record.get("occurrences", {}).items()}
    if not all(map(_KEY.fullmatch, table)):
        raise ValueError(record["name"])
    return table


def _time_us(value: float) -> float:
    """A time, which sums of some millions do not overflow; `ValueError` if it is none."""
    if not 0 <= value <= MAX_COST_US:
        raise ValueError(value)
    return float(value)


def _ends_record(fingerprint: str, ends: Ends) -> dict[str, object]:
    groups = [group for _, group in ends.columns]
    return {
        "module": ends.module,
        **({"fingerprint": fingerprint} if fingerprint else {}),
        "collectives": [name for name, _ in ends.columns],
        **({"groups": groups} if any(groups) else {}),
        **({"first": ends.first} if ends.first else {}),
        **({} if ends.utc_ns is None else {"utc_ns": ends.utc_ns}),
        "ns": ends.ns,
    }


def _ends(records: Iterable[Mapping[str, Any]]) -> dict[str, tuple[Ends, ...]]:
    """By fingerprint. All of it is checked, since `merge` needs it."""
    found: dict[str, tuple[Ends, ...]] = {}
    for record in records:
        names = [str(name) for name in record["collectives"]]
        groups = [_whole(group, 1 << 30) for group in record.get("groups") or [0] * len(names)]
        columns = tuple(zip(names, groups, strict=True))
        rows = tuple(tuple(None if ns is None else _whole(ns, MOST_NS) for ns in row) for row in record["ns"])
        if not columns or len(set(columns)) < len(columns) or any(len(row) != len(columns) for row in rows):
            raise ValueError("ends")
        utc_ns = record.get("utc_ns")
        ends = Ends(
            module=str(record["module"]),
            columns=columns,
            ns=rows,
            first=_whole(record.get("first", 0), 1 << 30),
            utc_ns=None if utc_ns is None else _whole(utc_ns, 1 << 63),
        )
        fingerprint = str(record.get("fingerprint", ""))
        found[fingerprint] = (*found.get(fingerprint, ()), ends)
    return found


def _whole(value: object, limit: int) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(value)
    return value


def _lines(records: list[dict[str, object]]) -> str:
    """One record per line; encoded together, which takes a third of the time."""
    try:
        text = _ENCODER.encode(records)
    except ValueError:
        text = _ENCODER.encode(_finite(records))
    return "    " * bool(records) + text[1:-1].replace(_BETWEEN, _BETWEEN.replace(" {", "\n    {"))


def _finite(value: object) -> object:
    """`value` with infinite and NaN floats as text: JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
