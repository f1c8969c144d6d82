"""An export of a program without XLA's ranges, as kernels: which ran when, but of no instruction and no step."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from pgle.errors import UserError
from pgle.files import AnyPath
from pgle.trace.nsys.activities import ACTIVITIES, MAX_DURATION_NS, MAX_TIME_NS, by_time
from pgle.trace.nsys.read import open_tables
from pgle.trace.nsys.recording import devices_of, source
from pgle.trace.nsys.tables import PROCESS, Codes
from pgle.trace.table import Kind, ModuleKey, Trace

WHOLE = "whole recording"  # the name of the one module that such a trace has


_KINDS = len(Kind)
_COPIES = {1: " host to device", 2: " device to host", 8: " device to device", 10: " peer to peer"}
"""Values of ``ENUM_CUDA_MEMCPY_OPER``."""


def _transfer(code: int) -> str:
    """``memcpy host to device``."""
    return Kind(code % _KINDS).name.lower() + _COPIES.get(code // _KINDS, "")


def read_kernels(path: AnyPath) -> Trace:
    """Every GPU activity of an export; instructions are kernel names, and each device has one execution of its own.

    Raises:
        UserError: it is no export, or holds no GPU activity.
    """
    with closing(open_tables(path)) as tables:
        parts: list[np.ndarray] = []
        names = {number: str(text) for number, text in tables.rows("StringIds", ("id", "value"))}
        for table, kind in ACTIVITIES.items():
            wanted = ["start", "end", "globalPid", "deviceId", "streamId"]
            wanted += ["shortName"] if kind is Kind.KERNEL else []
            wanted += ["copyKind"] if kind is Kind.MEMCPY and "copyKind" in tables.columns(table) else []
            for batch in tables.integers(table, wanted) if set(wanted) <= tables.columns(table) else ():
                code = batch[5] if kind is Kind.KERNEL else -1 - kind - _KINDS * (batch[5] if len(wanted) > 5 else 0)
                code = np.broadcast_to(code, len(batch[0]))
                parts.append(np.stack([*batch[:5], np.full(len(batch[0]), kind), code]))
        if not parts:
            raise UserError("no GPU activity", where=tables.path, remedy="record with `nsys profile --trace=cuda`")
        start, end, pid, ordinal, stream, kinds, code = np.concatenate(parts, axis=1)
        kept = (end >= start) & (end - start <= MAX_DURATION_NS) & (abs(start) <= MAX_TIME_NS)
        pairs, number = np.unique(np.stack([pid & PROCESS, ordinal]), axis=1, return_inverse=True)
        codes, name = np.unique(code, return_inverse=True)
        device: Codes = number.reshape(-1).astype(np.int32)
        order = np.flatnonzero(kept)
        order = order[by_time(device[order], start[order])]
        rows = len(order)
        return Trace(
            start_ns=start[order],
            duration_ns=(end - start)[order],
            kind=kinds[order].astype(np.uint8),
            device=device[order],
            stream=stream[order].astype(np.int32),
            module=np.zeros(rows, np.int32),
            instruction=name.reshape(-1).astype(np.int32)[order],
            execution=device[order],
            instance=np.full(rows, -1, np.int32),
            modules=(ModuleKey(WHOLE),),
            instructions=tuple(_transfer(-1 - item) if item < 0 else names.get(item, "") for item in codes.tolist()),
            devices=tuple(devices_of(tables, [(int(a), int(b)) for a, b in pairs.T])),
            sources=(source(tables),),
        )
