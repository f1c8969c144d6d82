"""`pgle complete`: a profile with gaps and HLO in, a profile without gaps and its sidecar out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgle.costs.fit.complete import Completion, complete_profile
from pgle.costs.fit.lookup import LookupTable
from pgle.costs.profile.files import check_suffix, encode_profile, profile_files, read_profile, sidecar_path
from pgle.costs.profile.value import Profile
from pgle.errors import UserError
from pgle.files import AnyPath, check_absent, sha256, write_files
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo.module import Module
from pgle.xla.hlo.reader import read_modules
from pgle.xla.hlo.schedule_dump import find_schedule_dumps, read_schedule_dump
from pgle.xla.targets import load_target


@dataclass(frozen=True)
class CompleteResult:
    """What was completed and written.

    Attributes:
        completions: one per module; the last holds the whole profile.
        path: the file written.
        sha256: of the profile file.
    """

    completions: tuple[Completion, ...]
    path: str
    sha256: str


def complete_file(
    profile: AnyPath,
    hlo: Sequence[AnyPath],
    output: AnyPath,
    *,
    target: str,
    module: str = "",
    devices_per_host: int = 8,
    force: bool = False,
) -> CompleteResult:
    """Read, fill and write.

    Args:
        profile: may have gaps.
        hlo: dump files or directories.
        output: ``.pbtxt`` or ``.pb``.
        target: a GPU's name or description.
        module: regular expression searched in module names; empty: the module that the profile has most costs of.
        devices_per_host: GPUs that share NVLink.
        force: overwrite.

    Raises:
        UserError: an input is bad, no module matches, or the output exists; nothing is then written.
    """
    check_suffix(output)
    for path in (output, sidecar_path(output)):
        check_absent(path, force=force, inputs=(profile, *hlo))
    given, hardware = read_profile(profile), find_hardware(load_target(target), devices_per_host=devices_per_host)
    completions: list[Completion] = []
    chosen = _matching(given, hlo, profile, module)
    for final, lhs_module in chosen:  # bare names of one module would count for the others
        completions.append(
            complete_profile(given, final, hardware, lhs_module=lhs_module, with_fingerprint=len(chosen) > 1)
        )
        given = completions[-1].profile
    write_files(profile_files(output, given), force=force, inputs=(profile, *hlo))
    return CompleteResult(tuple(completions), str(output), sha256(encode_profile(given, output.suffix)))


def complete_for(
    profile: Profile, modules: Sequence[Module], hardware: Hardware, lhs_modules: Mapping[str, Module]
) -> Profile:
    """The profile with its gaps filled for each of these modules, for `pgle convert --complete`.

    Args:
        profile: as measured.
        modules: final modules.
        hardware: the GPU for estimates.
        lhs_modules: modules as LHS saw them, by name.
    """
    for module in modules:
        profile = complete_profile(profile, module, hardware, lhs_module=lhs_modules.get(module.name)).profile
    return profile


def _matching(
    profile: Profile, hlo: Sequence[AnyPath], where: AnyPath, module: str
) -> list[tuple[Module, Module | None]]:
    """The modules to complete for, each with the module as LHS saw it where a schedule dump lies beside.

    By default the one that the profile has most costs of: small helper modules share a name or two by accident. Where
    costs are named by fingerprint, each module that is named.
    """
    dumps = {name: file for path in hlo for name, file in find_schedule_dumps(path).items()}
    named = {cost.fingerprint for cost in profile.costs} - {""}
    found = {(item.name, item.fingerprint): item for path in hlo for item in read_modules(path)}
    counts = {key: _matches(profile, item) for key, item in found.items()}
    if module:
        try:
            chosen = [key for key in found if re.search(module, key[0])]
        except re.error as error:
            raise UserError(f"invalid regular expression ({error})", where=f"--module {module}") from None
    else:
        best = max(counts, key=lambda key: counts[key], default=None)
        chosen = [key for key in found if key[1] in named or (key == best and not named)]
    chosen = [key for key in chosen if counts[key]]
    if not chosen:
        raise UserError(
            "has no cost of any instruction of the modules given",
            where=where,
            remedy="give --hlo the dump of the program it was made for; 'pgle verify' shows what matches",
        )
    return [(found[key], read_schedule_dump(dumps[key[0]]).module if key[0] in dumps else None) for key in chosen]


def _matches(profile: Profile, module: Module) -> int:
    """How many instructions of a module a profile has costs of."""
    return len(LookupTable(module).costs(profile))
