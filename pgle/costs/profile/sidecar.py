"""The sidecar of a profile, ``PROFILE.json``: what the profile file itself has no room for.

    {"schema": "pgle.profile/1", "sha256": of the profile file,
     "provenance": {…}, "warnings": […],
     "costs": [{"name": "all-gather-start.1", "kind": "collective", "opcode": "all-gather", "shape": "bf16[4096,512]",
                "samples": 18, "min_us": 801.2, "max_us": 830.9, "spread": 0.02, "trace_name": "all-gather.4",
                "origin": "measured"}, …]}

One record per entry of the profile, in its order, one per line; unknown fields (empty or 0) are left out.
Fields of other releases are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pgle.costs.profile.value import MAX_COST_US, Cost, CostKind, Entry, Origin, Profile, split_name
from pgle.files import sha256

SCHEMA = "pgle.profile/1"

# Nobody measured an instruction more often; sums over all ranks stay within 64 bits.
Samples = Annotated[int, Meta(ge=0, lt=1 << 40)]
Time = Annotated[float, Meta(ge=0, le=MAX_COST_US)]
"""Of some millions of these the sum is still a number."""


class SidecarError(ValueError):
    """The sidecar cannot be used; the message says why."""


class Record(Struct, kw_only=True, gc=False):
    """Facts about one entry; fields as in `Cost`."""

    name: str  # with any ``fingerprint::``
    kind: CostKind = CostKind.UNKNOWN
    opcode: str = ""
    shape: str = ""
    samples: Samples = 0
    min_us: float = 0.0
    max_us: float = 0.0
    spread: float = 0.0
    slowest_us: Time | None = None
    trace_name: str = ""
    origin: Origin  # always there


_KNOWN = Cost._fields[Cost._fields.index("kind") :]
_known_of = attrgetter(*_KNOWN)


class _Launch(Struct):
    kernels: dict[str, Time] = {}
    origin: str = ""
    gap_us: Time = 0.0
    switch_us: Time = 0.0
    host_us: Time = 0.0


class _Module(Struct):
    name: str = ""
    fingerprints: list[str] = []
    rank_ids: list[int] = []
    hlo: bool = False
    executions_dropped: dict[str, str] | None = None
    program_id: int | None = None
    executions_used: int | None = None
    executions_seen: int | None = None
    devices: int | None = None
    ranks: int | None = None
    names: int | None = None
    collectives: int | None = None
    step_us: Time | None = None
    launch: _Launch | None = None
    contention: dict[str, dict[str, Time] | None] | None = None


class _Input(Struct):
    name: str = ""
    format: str = ""
    version: str = ""


class _Provenance(Struct):
    """What later code takes for granted of a provenance: the type of a value, if it is there."""

    tool: str = ""
    stat: str = ""
    collective_stat: str = ""
    xla_flags: str = ""
    inputs: list[_Input] = []
    modules: list[_Module] = []
    completed: list[dict[str, Any]] = []


class _Sidecar(Struct):
    costs: list[Record]
    schema: str = ""
    sha256: str = ""
    provenance: dict[str, Any] = {}
    warnings: list[str] = []


class _Head(Struct):
    schema: Any = ""
    sha256: Any = ""


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
        "warnings": profile.warnings,
    }
    records: list[dict[str, object]] = [
        {"name": cost.full_name}
        | {name: value for name, value in zip(_KNOWN, cost[-len(_KNOWN) :], strict=True) if value}
        for cost in profile.costs
    ]
    text = msgspec.json.format(msgspec.json.encode(head, enc_hook=str), indent=2).decode()
    lines = msgspec.json.format(msgspec.json.encode(records), indent=0).decode()[1:-1]
    lines = lines.replace('}, {"name": ', '},\n    {"name": ')  # inside a text the quotes would be escaped
    return f'{text[:-2]},\n  "costs": [\n    {lines}\n  ]\n}}\n'


def described(entries: Sequence[Entry], data: bytes, text: bytes) -> Profile:
    """The profile of these entries with what its sidecar says.

    Args:
        entries: of the profile.
        data: the bytes of the profile file.
        text: the bytes of the sidecar.

    Raises:
        SidecarError: it is no sidecar, or of another profile, or damaged.
    """
    try:
        head = msgspec.json.decode(text, type=_Head)
    except msgspec.ValidationError:
        head = _Head()
    except (msgspec.DecodeError, RecursionError):
        raise SidecarError("not JSON") from None
    if head.schema != SCHEMA:
        raise SidecarError(f"not a sidecar of schema {SCHEMA}")
    if head.sha256 != sha256(data):
        raise SidecarError("describes another version of the profile (its sha256 differs)")
    try:
        found = msgspec.json.decode(text, type=_Sidecar)
        msgspec.convert(found.provenance, _Provenance)
    except (msgspec.ValidationError, RecursionError):
        raise SidecarError("damaged") from None
    if [record.name for record in found.costs] != [name for name, _ in entries]:
        raise SidecarError("damaged")
    costs = []
    for (written, cost_us), record in zip(entries, found.costs, strict=True):
        fingerprint, name = split_name(written)
        costs.append(Cost(name, cost_us, fingerprint, *_known_of(record)))
    return Profile(tuple(costs), found.provenance, tuple(found.warnings))
