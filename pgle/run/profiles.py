"""Profiles that pgle writes: checked before the work, written whole with their sidecars; and `pgle merge`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgle.costs.profile.files import check_suffix, profile_files, read_file, read_profile, sidecar_path
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, check_absent, sha256, write_files
from pgle.run.process.executor import PROCESSES, executor

if TYPE_CHECKING:
    from pgle.costs.profile.cost_table import CostTable, Source
    from pgle.costs.profile.merge import Merged, MergeOptions

RECORDINGS = (".xplane.pb", ".hlo.pb", ".schedule.pb")
"""Names that end like a profile's, but that readers take for a recording of a profiler or of XLA."""

MANY = 50
AT_A_TIME = 16
READERS = 4


@dataclass(frozen=True)
class Written:
    """A profile that was written."""

    path: str
    sha256: str
    names: int


def check_output(path: AnyPath, *, force: bool, inputs: Iterable[AnyPath]) -> None:
    """Raise `UserError` where a profile and its sidecar could not be written, before any long work."""
    check_suffix(path)
    if path.name.endswith(RECORDINGS):
        raise UserError("is the name of a recording, not of a profile", where=path, remedy="choose another name")
    given = tuple(inputs)
    for file in (path, sidecar_path(path)):
        check_absent(file, force=force, inputs=given)


def write_profiles(
    profiles: Mapping[AnyPath, Profile], *, force: bool, inputs: Iterable[AnyPath]
) -> tuple[Written, ...]:
    """Write profiles and their sidecars, all or none.

    Raises:
        UserError: as of `pgle.files.write_files`.
    """
    files: dict[AnyPath, bytes | str] = {}
    written = []
    for path, profile in profiles.items():
        made = profile_files(path, profile)
        files |= made
        data = made[path]
        written.append(Written(str(path), sha256(data if isinstance(data, bytes) else data.encode()), len(profile)))
    write_files(files, force=force, inputs=inputs)
    return tuple(written)


def merge_files(
    paths: Sequence[AnyPath], out: AnyPath, options: MergeOptions, *, force: bool = False
) -> tuple[Merged, Written]:
    """Read, merge and write: the merged profile, with what is to be said about it, and its file.

    Raises:
        UserError: an input is bad or given twice, nothing is left, or the output exists; nothing is then written.
    """
    from pgle.costs.profile.merge import merge_collected

    check_output(out, force=force, inputs=paths)
    again = next((path for path, times in Counter(paths).items() if times > 1), None)
    if again is not None:
        raise UserError("given twice", where=again, remedy="name each profile once")
    names = [path.name for path in paths]
    labels = names if len(set(names)) == len(names) else [str(path) for path in paths]
    table, sources = _collected(list(zip(labels, paths, strict=True)))
    merged = merge_collected(table, sources, options)
    (written,) = write_profiles({out: merged.profile}, force=force, inputs=paths)
    return merged, written


def _collected(inputs: Sequence[tuple[str, AnyPath]]) -> tuple[CostTable, tuple[Source, ...]]:
    """The costs of labelled files; of many, each process reads some at a time, and only its columns come back."""
    if len(inputs) < MANY or os.cpu_count() == 1:
        return _read(inputs)
    from pgle.costs.profile.cost_table import joined

    parts = [inputs[at : at + AT_A_TIME] for at in range(0, len(inputs), AT_A_TIME)]
    with executor(PROCESSES, READERS) as pool:
        return joined(pool.map(_read, parts))


def _read(inputs: Sequence[tuple[str, AnyPath]]) -> tuple[CostTable, tuple[Source, ...]]:
    from pgle.costs.profile.cost_table import collect

    return collect((label, read_profile(path) if path.is_dir() else read_file(path)) for label, path in inputs)
