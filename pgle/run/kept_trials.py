"""What `advise` has shown of a program's opportunities, kept in the user's cache for `rehearse`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from pgle import __version__
from pgle.account.value import OpportunityKind
from pgle.errors import UserError
from pgle.files import read_kept, write_files
from pgle.run.capture.captured import partitioned
from pgle.run.compiler.cache import Cache, key_of
from pgle.run.rehearse_program import RehearseRequest

MOST_BYTES = 1 << 16  # of a file; what is more is damage

Shown = Mapping[OpportunityKind, str]
"""What trying the edit of an opportunity has shown, in words."""


def keep_trials(request: RehearseRequest, shown: Shown) -> None:
    """Keep what was shown, if compilations are kept; a disk that is full is no failure."""
    path = _place(request)
    if path is not None and shown:
        with suppress(OSError, UserError):
            write_files({path: msgspec.json.encode(shown)}, force=True)


def kept_trials(request: RehearseRequest) -> Shown:
    """What was shown of this program on these GPUs by these flags; empty if nothing."""
    path = _place(request)
    if path is None:
        return {}
    try:
        data = read_kept(path, max_bytes=MOST_BYTES) or b""
        return msgspec.json.decode(data, type=dict[OpportunityKind, str])
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}


def _place(request: RehearseRequest) -> Path | None:
    """The file of a program; None if nothing is kept."""
    cache = Cache.of_user()
    if not request.asked.cached or not cache.limit_bytes:
        return None
    hardware = (request.target.text, request.topology, request.asked.network_gb_s)
    memory = request.allocator_bytes
    others = {"pgle": __version__, "hardware": hardware, "memory": memory}
    module = partitioned(request.module)
    key = key_of(request.python, module, request.flags, None, others)
    return cache.folder.with_name("trials") / key
