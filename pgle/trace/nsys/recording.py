"""What an nsys export tells of the recording itself: when it was, on which GPUs, in which container."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pgle.trace.nsys.devices import process_id
from pgle.trace.nsys.tables import Tables
from pgle.trace.table import Device, Recording

_NAMESPACE = re.compile(r"pid:\[\d{1,20}\]")
"""What ``/proc/PID/ns/pid`` links to; exports of 2026 have it as NamespacePID or SystemUID."""


def recordings(tables: Tables, used: Iterable[tuple[int, int]], devices: Sequence[Device]) -> dict[str, Recording]:
    """What is known of each process.

    Args:
        tables: the export.
        used: pairs of globalPid and device ordinal.
        devices: what `nsys_devices.devices` made of them.
    """
    utc_ns = _session_start(tables)
    namespace = _namespace(tables)
    gpus = _gpus(tables)
    by_ordinal = _gpu_of_ordinal(tables)
    of_process: dict[str, list[object]] = {}
    for (pid, ordinal), device in zip(used, devices, strict=True):
        of_process.setdefault(device.process, []).append(by_ordinal.get((process_id(pid), ordinal)))
    everything = frozenset().union(*gpus.values())
    return {
        name: Recording(
            utc_ns,
            frozenset().union(*(gpus[gpu] for gpu in chosen)) if all(gpu in gpus for gpu in chosen) else everything,
            namespace,
        )
        for name, chosen in of_process.items()
    }


def _session_start(tables: Tables) -> int | None:
    """When the session began, which all times count from."""
    for (value,) in tables.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        if isinstance(value, int) and value > 0:
            return value
    return None


def _namespace(tables: Tables) -> str:
    names = ("NamespacePID", "SystemUID")
    for _, value in tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"), like=("name", names)):
        if isinstance(value, str) and _NAMESPACE.fullmatch(value.strip()):
            return value.strip()
    return ""


def _gpus(tables: Tables) -> Mapping[object, frozenset[str]]:
    """How each GPU that the recorder saw can be told from others."""
    found: dict[object, frozenset[str]] = {}
    for kind, column in (("uuid", "uuid"), ("bus", "busLocation")):
        for gpu, value in tables.rows("TARGET_INFO_GPU", ("id", column)):
            if isinstance(value, str) and value.strip("0-:. "):
                found[gpu] = found.get(gpu, frozenset()) | {f"{kind}:{value.strip().lower()}"}
    return found


def _gpu_of_ordinal(tables: Tables) -> dict[tuple[object, object], object]:
    """The GPU by process id and device ordinal; exports of 2024 and later have it."""
    rows = tables.rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
    return {(pid, ordinal): gpu for pid, ordinal, gpu in rows}
