"""What `advise` found about a program's opportunities, in the user's cache. All answers on the
program by the same costs read this file: those of one profile, or estimates for one GPU.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from pgle import __version__
from pgle.account.value import Budget, OpportunityKind, Refused, Shown, Trial
from pgle.errors import UserError
from pgle.files import read_kept, write_files
from pgle.requests.predictions import Rehearse
from pgle.run.capture.captured import modules_in, partitioned, read_captured
from pgle.run.compiler.cache import Cache, key_of
from pgle.run.directory.directory import RunDirectory
from pgle.run.rehearse_program import (
    RehearseRequest,
    settle,
    understood,
    with_hosts_flag,
)
from pgle.xla.targets import load_target

FORMAT = 6  # format 5 had code within the words of an edit
_What = Trial | Refused | Budget
MOST_BYTES = 1 << 16  # size limit of a valid file; a larger file is damaged


def keep_trials(request: RehearseRequest, shown: Shown) -> None:
    """Save the trials of `advise`, if the user keeps compilations. A full disk is not an error.

    A trial from an earlier answer stays, if this answer did not try it or could not.
    """
    path = _place(request)
    if path is not None and shown:
        known = dict(kept_trials(request))
        for kind, what in shown.items():
            if kind not in known or _is_more(what, known[kind]):
                known[kind] = what
        with suppress(OSError, UserError):
            write_files({path: msgspec.json.encode(known)}, force=True)


def _is_more(new: _What, known: _What) -> bool:
    """Whether a new result says more than a known one. A trial says more than none. Of two trials
    the one that helps more counts, because a smaller budget tries fewer alternatives.
    """
    if not isinstance(new, Trial):
        return not isinstance(new, int) and not isinstance(known, Trial)
    if not isinstance(known, Trial):
        return True
    return (new.helps, new.saved) >= (known.helps, known.saved)


def kept_trials(request: RehearseRequest) -> Shown:
    """Return the trials of this program on these GPUs with these flags, judged by these costs;
    empty if there are none.
    """
    path = _place(request)
    if path is None:
        return {}
    try:
        data = read_kept(path, max_bytes=MOST_BYTES) or b""
        return msgspec.json.decode(data, type=dict[OpportunityKind, _What])
    except (OSError, msgspec.MsgspecError, ValueError):
        return {}


def trials_of_run(run: RunDirectory) -> Shown:
    """Return the trials of the program of a run directory; empty if there are none."""
    folder = _folder()
    if not folder.is_dir() or not any(folder.iterdir()):
        return {}
    try:
        command = understood(Rehearse((str(run.path),)))
        modules = Path(command.asked.words[0])
        request = settle(
            modules_in(modules, dumps=True),
            command.asked,
            command.ran or read_captured(modules),
            load_target(command.target),
            run.path,
            topology=command.asked.shape,
        )
        request = replace(request, profile=command.asked.profile)
        return kept_trials(with_hosts_flag(request))
    except UserError:  # for example, the run has no module
        return {}


def _folder() -> Path:
    return Cache.of_user().folder.with_name("trials")


def _place(request: RehearseRequest) -> Path | None:
    """Return the file with a program's trials by a request's costs; None if nothing is kept."""
    cache = Cache.of_user()
    if not request.asked.cached or not cache.limit_bytes:
        return None
    hardware = (request.target.text, request.topology, request.asked.network_gb_s)
    memory = request.allocator_bytes
    version = f"{__version__}, trials {FORMAT}"
    others = {"pgle": version, "hardware": hardware, "memory": memory}
    module = partitioned(request.module)
    key = key_of(request.python, module, request.flags, request.profile, others)
    return _folder() / key
