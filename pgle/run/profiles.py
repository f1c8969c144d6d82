"""Profiles that pgle writes: checked before the work, written whole with their sidecars; and `pgle merge`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pgle.costs.profile.files import check_suffix, profile_files, read_profile, sidecar_path
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, check_absent, sha256, write_files
from pgle.run.process.executor import PROCESSES, executor

if TYPE_CHECKING:
    from pgle.costs.profile.merge import Columns, Merged, MergeOptions, Source

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
    """Read, merge and write: the merged profile, with remarks on it, and its file.

    Raises:
        UserError: an input is bad or given twice, nothing is left, or the output exists; nothing is then written.
    """
    from pgle.costs.profile.merge import merge_columns

    check_output(out, force=force, inputs=paths)
    again = next((path for path, times in Counter(paths).items() if times > 1), None)
    if again is not None:
        raise UserError("given twice", where=again, remedy="name each profile once")
    names = [path.name for path in paths]
    labels = names if len(set(names)) == len(names) else [str(path) for path in paths]
    labelled = list(zip(labels, paths, strict=True))
    if len(paths) < MANY or os.cpu_count() == 1:
        merged = merge_columns(map(_read, labelled), options)
    else:
        with executor(PROCESSES, READERS) as pool:
            merged = merge_columns(pool.map(_read, labelled, chunksize=AT_A_TIME), options)
    (written,) = write_profiles({out: merged.profile}, force=force, inputs=paths)
    return merged, written


def _read(labelled: tuple[str, AnyPath]) -> tuple[Source, Columns]:
    from pgle.costs.profile.merge import merge_input

    label, path = labelled
    return merge_input(label, read_profile(path))
