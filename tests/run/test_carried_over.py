"""A profile that covers too little of a module is carried over if its run directory has the module
it is of.
"""

from pathlib import Path

import pytest

from pgle.costs.profile.coverage import estimate_profile
from pgle.costs.profile.files import profile_files, read_profile
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Cost, Profile
from pgle.files import write_files
from pgle.run.coverage import carried_over, find_fit
from pgle.run.directory.directory import RunDirectory
from pgle.xla.hlo.dumps import read_module
from pgle.xla.log.verdict import BOUNDS
from pgle.xla.targets import find_hardware

H100 = find_hardware("h100")
OLD, NEW = "jax-0.10.2", "jax-0.12.0.1"


def dump(testdata: Path, release: str) -> Path:
    return next((testdata / "hlo" / release / "async").glob("*optimizations.hlo.pb.xz"))


def in_run(
    run: Path, testdata: Path, path: str, stage: str = "profile", release: str = OLD
) -> Path:
    """A profile of the old release in a run directory whose stage compiled a release."""
    hlo = RunDirectory(run).stage(stage).rank().hlo  # type: ignore[arg-type]
    hlo.mkdir(parents=True)
    (hlo / dump(testdata, release).name).write_bytes(
        dump(testdata, release).read_bytes()
    )
    RunDirectory(run).manifest().write_text("{}")
    profile = run / path
    write_files(
        profile_files(
            profile, estimate_profile(read_module(dump(testdata, OLD)), H100)
        ),
        force=True,
    )
    return profile


@pytest.mark.parametrize(
    "place", ["profile.pbtxt", "profiles/profile-0123456789ab.pbtxt"]
)
def test_a_profile_of_another_release_is_carried_and_says_so(
    testdata: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "run/profiles").mkdir(parents=True)
    profile = in_run(tmp_path / "run", testdata, place)
    new = LookupTable(read_module(dump(testdata, NEW)))
    given = read_profile(profile)
    found, note = carried_over(profile, given, new, H100)
    assert "the profile is of another compilation" in note
    assert note in found.warnings
    assert found.provenance["carried"]["to"] == new.module.name  # type: ignore[index]
    assert len(new.costs(found)) > len(new.costs(given))


def test_a_profile_of_another_program_is_left_as_it_is(
    testdata: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    profile = in_run(tmp_path / "run", testdata, "profile.pbtxt")
    given = Profile((*read_profile(profile).costs, Cost("fusion.of_another", 1e9)))
    found = carried_over(
        profile, given, LookupTable(read_module(dump(testdata, NEW))), H100
    )
    assert found == (given, "")


def test_a_profile_that_fits_is_left_as_it_is(testdata: Path, tmp_path: Path) -> None:
    profile = in_run(tmp_path / "run", testdata, "profile.pbtxt")
    given = read_profile(profile)
    found = carried_over(
        profile, given, LookupTable(read_module(dump(testdata, OLD))), H100
    )
    assert found == (given, "")


def test_without_the_module_that_it_was_measured_on_nothing_is_carried(
    testdata: Path, tmp_path: Path
) -> None:
    profile = in_run(tmp_path / "run", testdata, "profile.pbtxt").rename(
        tmp_path / "alone.pbtxt"
    )
    given = read_profile(profile)
    assert (
        carried_over(
            profile, given, LookupTable(read_module(dump(testdata, NEW))), H100
        )[1]
        == ""
    )


def test_the_pipeline_carries_to_what_the_baseline_compiled(
    testdata: Path, tmp_path: Path
) -> None:
    in_run(tmp_path / "run", testdata, "profile.pbtxt")
    in_run(tmp_path / "run", testdata, "profile.pbtxt", "baseline", NEW)
    run = RunDirectory(tmp_path / "run")
    fit = find_fit(run.profile, run.stage("baseline").rank().hlo, BOUNDS)
    assert fit.profile.name == "profile.carried.pbtxt"
    assert fit.note in read_profile(fit.profile).warnings
