"""Which process and which of JAX's devices a GPU activity ran on."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pgle.trace.nsys.tables import Tables
from pgle.trace.table import Device

PID_MASK = 0xFFFFFF
"""globalPid and globalTid hold the process id in bits 24 to 47 and the thread id below; the sign bit may be set."""

_JAX_DEVICE = re.compile(r"#global=(\d{1,9}),local=(\d{1,9}),process=(\d{1,9})\b")


def process_id(global_id: int) -> int:
    """The operating system's process id in a globalPid or globalTid."""
    return (global_id >> 24) & PID_MASK


def devices(tables: Tables, used: Iterable[tuple[int, int]]) -> tuple[Device, ...]:
    """The devices of an export, in the order of `used`.

    Args:
        tables: the export.
        used: pairs of globalPid and device ordinal, as activities name them. With one GPU per process all are 0.
    """
    used = list(used)
    host = _host(tables) or tables.path.stem
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


def _host(tables: Tables) -> str:
    """The machine's name; the recorded environment is not read."""
    for _, value in tables.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value"), like=("name", ("Hostname",))):
        if isinstance(value, str) and value.strip():
            return value.strip()[:255]
    return ""


def _launchers(tables: Tables) -> dict[int, dict[int, int]]:
    """Global device by process id and local device, from XLA's launcher threads (``XlaLauncher:#global=…#``)."""
    names = {
        identity: match
        for identity, text in tables.rows("StringIds", ("id", "value"), like=("value", ("XlaLauncher:",)))
        if isinstance(text, str) and (match := _JAX_DEVICE.search(text))
    }
    found: dict[int, dict[int, int]] = {}
    if names:
        for identity, tid in tables.rows("ThreadNames", ("nameId", "globalTid")):
            if isinstance(tid, int) and (match := names.get(identity)):
                found.setdefault(process_id(tid), {})[int(match[2])] = int(match[1])
    return found


def _named(tables: Tables) -> dict[int, set[int]]:
    """Global devices by ordinal, from the names XLA gives its devices (``Xla:#global=…#``)."""
    found: dict[int, set[int]] = {}
    for name, ordinal in tables.rows("TARGET_INFO_NVTX_CUDA_DEVICE", ("name", "deviceId")):
        if isinstance(name, str) and isinstance(ordinal, int) and (match := _JAX_DEVICE.search(name)):
            found.setdefault(ordinal, set()).add(int(match[1]))
    return found
