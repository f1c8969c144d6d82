"""What an Nsight Systems export says of its recording: devices, hosts, GPUs, the exporter, XLA's flags.

Exports hold the whole environment of the recorded process, and so secrets: nothing of it but flags of XLA is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from pgle.trace.nsys.tables import Tables
from pgle.trace.table import Device, Recording

PID_MASK = 0xFFFFFF
"""globalPid and globalTid hold the process id in bits 24 to 47 and the thread id below; the sign bit may be set."""

_JAX_DEVICE = re.compile(r"#global=(\d{1,9}),local=(\d{1,9}),process=(\d{1,9})\b")

_NAMESPACE = re.compile(r"pid:\[\d{1,20}\]")
"""What ``/proc/PID/ns/pid`` links to; exports of 2026 have it as NamespacePID or SystemUID."""

_VARIABLE = re.compile(r"""(?:^|[\s;,"'\0])XLA_FLAGS=([^\n\0]*)""")
_QUOTED = "|".join(rf"{quote}(?:[^{quote}=]|(?<=[a-z0-9])=)*{quote}" for quote in "\"'")
_FLAG = re.compile(rf"""(?<![^\s;,"'=])--xla\w*(?:=(?:{_QUOTED}|[^\s;,"'\0|&=]*(?:,[\w.:+-]+(?![\w.:+-]*=))*))?""")
"""A flag with its value. Values have no ``=``, and a comma belongs to one where no ``NAME=`` follows:
that is another variable."""


def process_id(global_id: int) -> int:
    """The operating system's process id in a globalPid or globalTid."""
    return (global_id >> 24) & PID_MASK


def devices_of(tables: Tables, used: Iterable[tuple[int, int]]) -> tuple[Device, ...]:
    """The devices of an export, in the order of `used`.

    Args:
        tables: the export.
        used: pairs of globalPid and device ordinal, as activities name them. With one GPU per process all are 0.
    """
    used = list(used)
    host = next(filter(None, _system(tables, "Hostname")), tables.path.stem)[:255]
    launchers = _launchers(tables)
    named = _named(tables)
    pids = {pid for pid, _ in used}
    names = {pid: f"{host}:{process_id(pid)}" for pid in pids}
    if len(set(names.values())) < len(pids):  # the same process id in several virtual machines or hosts
        names = {pid: f"{host}/{(pid >> 48) & 0xFFFF}:{process_id(pid)}" for pid in pids}
    found = []
    for pid, ordinal in used:
        mine = launchers.get(process_id(pid), {})
        number = mine.get(ordinal)
        if number is None:
            candidates = named.get(ordinal, set()) if len(used) > 1 else set().union(*named.values())
            number = next(iter(candidates)) if len(candidates) == 1 and len(pids) == 1 else None
        if number is None and len(mine) == 1 and sum(other == pid for other, _ in used) == 1:
            number = next(iter(mine.values()))
        found.append(Device(names[pid], ordinal, number))
    return tuple(found)


def _system(tables: Tables, *names: str) -> Iterator[str]:
    """What the export says of the machine under names that begin so; of its environment only flags are kept."""
    for _, value in tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"), like=("name", names)):
        if isinstance(value, str):
            yield value.strip()


def _launchers(tables: Tables) -> dict[int, dict[int, int]]:
    """Global device by process id and local device, from XLA's launcher threads (``XlaLauncher:#global=…#``)."""
    names = {
        identity: match for identity, text in tables.texts(("XlaLauncher:",)) if (match := _JAX_DEVICE.search(text))
    }
    found: dict[int, dict[int, int]] = {}
    if names:
        for identity, tid in tables.rows("ThreadNames", ("nameId", "globalTid")):
            if isinstance(tid, int) and isinstance(identity, int) and (match := names.get(identity)):
                found.setdefault(process_id(tid), {})[int(match[2])] = int(match[1])
    return found


def _named(tables: Tables) -> dict[int, set[int]]:
    """Global devices by ordinal, from the names XLA gives its devices (``Xla:#global=…#``)."""
    found: dict[int, set[int]] = {}
    for name, ordinal in tables.rows("TARGET_INFO_NVTX_CUDA_DEVICE", ("name", "deviceId")):
        if isinstance(name, str) and isinstance(ordinal, int) and (match := _JAX_DEVICE.search(name)):
            found.setdefault(ordinal, set()).add(int(match[1]))
    return found


def recordings(tables: Tables, used: Iterable[tuple[int, int]], devices: Sequence[Device]) -> dict[str, Recording]:
    """Facts about each process."""
    began = (value for (value,) in tables.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)))
    utc_ns = next((value for value in began if isinstance(value, int) and value > 0), None)  # all times count from it
    namespace = next(filter(_NAMESPACE.fullmatch, _system(tables, "NamespacePID", "SystemUID")), "")
    gpus = _gpus(tables)
    # exports of 2024 and later have it
    rows = tables.rows("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
    by_ordinal = {(pid, ordinal): gpu for pid, ordinal, gpu in rows}
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


def _gpus(tables: Tables) -> Mapping[object, frozenset[str]]:
    """The identity of each GPU that the recorder saw."""
    found: dict[object, frozenset[str]] = {}
    for kind, column in (("uuid", "uuid"), ("bus", "busLocation")):
        for gpu, value in tables.rows("TARGET_INFO_GPU", ("id", column)):
            if isinstance(value, str) and value.strip("0-:. "):
                found[gpu] = found.get(gpu, frozenset()) | {f"{kind}:{value.strip().lower()}"}
    return found


def exporter(tables: Tables) -> dict[str, str]:
    """What the exporter says of itself."""
    for table in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        rows = tables.rows(table, ("name", "value"), like=("name", ("EXPORT_PRODUCT", "EXPORT_SCHEMA_VERSION")))
        found = {str(name): str(value) for name, value in rows}
        if found:
            return found
    return {}


def xla_flags(tables: Tables) -> str:
    """XLA_FLAGS of the recorded process: what begins with ``--xla`` in its value, and no word else."""
    captured = tables.rows("META_DATA_CAPTURE", ("value",), like=("value", ("XLA_FLAGS=",)))  # NAME="value"
    variables = map(_VARIABLE.search, _system(tables, "DeviceEnvironment"))
    texts = chain(
        (value for (value,) in captured if isinstance(value, str)), (found[1] for found in variables if found)
    )
    return " ".join(_FLAG.findall(next(texts, "")))
