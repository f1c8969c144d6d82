"""Names as profiles spell them: ``FINGERPRINT::NAME`` or a bare name, and the ``.remat`` that XLA cuts off.

Source: ``FilterWithFingerprint`` in openxla/xla ``xla/service/gpu/gpu_hlo_schedule.cc``: exactly two parts are a
fingerprint and a name; a name with any other ``::`` matches nothing.
"""

from __future__ import annotations

import re

_REMAT_SUFFIX = re.compile(r"\.remat[0-9]*\Z")


def split_name(written: str) -> tuple[str, str]:
    """Fingerprint (empty: every module) and instruction name; any other ``::`` than one in the middle stays in it."""
    if "::" not in written:
        return "", written
    fingerprint, between, name = written.partition("::")
    return (fingerprint, name) if between and fingerprint and "::" not in name else ("", written)


def join_name(fingerprint: str, name: str) -> str:
    """What `split_name` takes apart."""
    return f"{fingerprint}::{name}" if fingerprint else name


def strip_remat(name: str) -> str:
    """The name without a ``.remat`` or ``.remat7`` at its end, which marks a copy made by rematerialisation."""
    return _REMAT_SUFFIX.sub("", name)


def has_remat(name: str) -> bool:
    """Whether a name of a profile makes XLA strip all its names and average equal ones: it need not be at the end."""
    return ".remat" in name
