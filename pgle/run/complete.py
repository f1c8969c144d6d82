"""`pgle complete`: a profile with gaps and HLO in, a profile without gaps and its sidecar out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgle.costs.complete import Completion, complete_profile
from pgle.costs.effective import effective_costs
from pgle.costs.profile import Profile
from pgle.costs.profile_io import check_suffix, encode_profile, profile_files, read_profile, sidecar_path
from pgle.errors import UserError
from pgle.files import AnyPath, check_absent, sha256, write_files
from pgle.xla.hardware import Hardware, find_hardware
from pgle.xla.hlo_reader import read_modules
from pgle.xla.module import Module
from pgle.xla.names import lhs_names, schedulable
from pgle.xla.schedule_dump import find_schedule_dumps, read_schedule_dump
from pgle.xla.targets import load_target

MIN_MATCH = 0.05
"""A module of which the profile has a smaller share of the names is not what it was made for."""


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
    out: AnyPath,
    *,
    target: str,
    devices_per_host: int = 8,
    force: bool = False,
) -> CompleteResult:
    """Read, fill and write.

    Args:
        profile: may have gaps.
        hlo: dump files or directories; of these the modules that the profile has costs of are completed.
        out: ``.pbtxt`` or ``.pb``.
        target: a GPU's name or description.
        devices_per_host: GPUs that share NVLink.
        force: overwrite.

    Raises:
        UserError: an input is bad, no module matches, or the output exists; nothing is then written.
    """
    check_suffix(out)
    for path in (out, sidecar_path(out)):
        check_absent(path, force=force)
    given, hardware = read_profile(profile), find_hardware(load_target(target), devices_per_host=devices_per_host)
    completions: list[Completion] = []
    for module, lhs_module in _matching(given, hlo, profile):
        completions.append(complete_profile(given, module, hardware, lhs_module=lhs_module))
        given = completions[-1].profile
    write_files(profile_files(out, given), force=force)
    return CompleteResult(tuple(completions), str(out), sha256(encode_profile(given, out.suffix)))


def complete_for(profile: Profile, modules: Sequence[Module], hardware: Hardware) -> Profile:
    """The profile with its gaps filled for each of these modules, for `pgle convert --complete`."""
    for module in modules:
        profile = complete_profile(profile, module, hardware).profile
    return profile


def _matching(profile: Profile, hlo: Sequence[AnyPath], where: AnyPath) -> list[tuple[Module, Module | None]]:
    """Modules whose names the profile has, each with the module as LHS saw it where a schedule dump lies beside."""
    found: list[tuple[Module, Module | None]] = []
    seen: set[tuple[str, str]] = set()
    best = 0.0
    for path in hlo:
        dumps = {name: read_schedule_dump(file).module for name, file in find_schedule_dumps(path).items()}
        for module in read_modules(path):
            share = _share(profile, module)
            best = max(best, share)
            if share >= MIN_MATCH and (module.name, module.fingerprint) not in seen:
                seen.add((module.name, module.fingerprint))
                found.append((module, dumps.get(module.name)))
    if not found:
        raise UserError(
            f"has costs of at most {best:.0%} of the names of any module given",
            where=where,
            remedy="give --hlo the dump of the program it was made for; 'pgle verify' shows what matches",
        )
    return found


def _share(profile: Profile, module: Module) -> float:
    known, renamed = effective_costs(profile, module.fingerprint), lhs_names(module)
    names = [renamed.get(item.name, item.name) for item in schedulable(module)]
    return sum(name in known for name in names) / max(len(names), 1)
