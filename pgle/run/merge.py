"""`pgle merge`: profiles in, one profile and its sidecar out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgle.costs.profile.files import check_suffix, encode_profile, profile_files, read_file, read_profile, sidecar_path
from pgle.costs.profile.merge import Merged, MergeOptions, merge_profiles
from pgle.errors import UserError
from pgle.files import AnyPath, check_absent, sha256, write_files


@dataclass(frozen=True)
class MergeResult:
    """What was merged and written.

    Attributes:
        merged: the profile and what is to be said about it.
        path: the file written.
        sha256: of the profile file.
    """

    merged: Merged
    path: str
    sha256: str


def merge_files(paths: Sequence[AnyPath], out: AnyPath, options: MergeOptions, *, force: bool = False) -> MergeResult:
    """Read, merge and write.

    Raises:
        UserError: an input is bad or given twice, nothing is left, or the output exists; nothing is then written.
    """
    check_suffix(out)
    for path in (out, sidecar_path(out)):
        check_absent(path, force=force, inputs=paths)
    again = next((path for index, path in enumerate(paths) if path in paths[:index]), None)
    if again is not None:
        raise UserError("given twice", where=again, remedy="name each profile once")
    names = [path.name for path in paths]
    labels = names if len(set(names)) == len(names) else [str(path) for path in paths]
    inputs = (
        (label, read_profile(path) if path.is_dir() else read_file(path))
        for label, path in zip(labels, paths, strict=True)
    )
    merged = merge_profiles(inputs, options)
    write_files(profile_files(out, merged.profile), force=force, inputs=paths)
    return MergeResult(merged, str(out), sha256(encode_profile(merged.profile, out.suffix)))
