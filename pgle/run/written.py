"""Profiles that pgle writes, each with its sidecar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pgle.costs.profile.files import check_suffix, profile_files, sidecar_path
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, check_absent, sha256, write_files

RECORDINGS = (".xplane.pb", ".hlo.pb", ".schedule.pb")
"""Endings of names that look like a profile's, but that readers take for recordings of a profiler
or of XLA.
"""


@dataclass(frozen=True)
class Written:
    """A profile that was written."""

    path: str
    sha256: str
    names: int


def check_output(path: AnyPath, *, force: bool, inputs: Iterable[AnyPath]) -> None:
    """Before any long work, raise `UserError` if a profile and its sidecar cannot be written."""
    check_suffix(path)
    if path.name.endswith(RECORDINGS):
        raise UserError(
            "is the name of a recording, not of a profile",
            where=path,
            remedy="choose another name",
        )
    given = tuple(inputs)
    for file in (path, sidecar_path(path)):
        check_absent(file, force=force, inputs=given)


def write_profiles(
    profiles: Mapping[AnyPath, Profile], *, force: bool, inputs: Iterable[AnyPath]
) -> tuple[Written, ...]:
    """Write profiles and their sidecars, all or none."""
    files: dict[AnyPath, bytes | str] = {}
    written = []
    for path, profile in profiles.items():
        made = profile_files(path, profile)
        files |= made
        data = made[path]
        written.append(
            Written(
                str(path),
                sha256(data if isinstance(data, bytes) else data.encode()),
                len(profile),
            )
        )
    write_files(files, force=force, inputs=inputs)
    return tuple(written)
