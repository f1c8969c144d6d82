"""Profile files: both forms, the sidecar, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgle.costs.profile.files import (
    check_suffix,
    decode_profile,
    encode_profile,
    profile_files,
    read_profile,
    sidecar_path,
)
from pgle.costs.profile.value import MAX_COST_US, Cost, CostKind, Origin, Profile
from pgle.errors import UserError
from pgle.files import write_files

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
PROFILES = st.lists(
    st.tuples(NAMES, st.floats(0, MAX_COST_US)), min_size=1, max_size=8
).map(
    lambda entries: Profile(
        tuple(Cost(name, cost_us, origin=Origin.UNKNOWN) for name, cost_us in entries)
    )
)


def spelled(profile: Profile) -> list[tuple[str, str]]:
    return [(cost.full_name, repr(cost.cost_us)) for cost in profile.costs]


def profile_of(*costs: tuple[str, float]) -> Profile:
    return Profile(tuple(Cost(name, cost_us) for name, cost_us in costs))


@settings(deadline=None)  # machines differ
@given(PROFILES)
def test_both_forms_give_back_every_name_and_cost(profile):
    text = decode_profile(encode_profile(profile, ".pbtxt"), Path("x.pbtxt"))
    binary = decode_profile(encode_profile(profile, ".pb"), Path("x.pb"))
    assert spelled(text) == spelled(binary) == spelled(profile)


@settings(deadline=None)  # machines differ
@given(PROFILES)
def test_jaxlib_reads_the_binary_form(profile):
    jaxlib = pytest.importorskip("jax._src.lib")._profiler
    last = {cost.full_name: cost.cost_us for cost in profile.costs}
    ours = Profile(tuple(Cost(name, cost_us) for name, cost_us in last.items()))
    theirs = decode_profile(
        jaxlib.aggregate_profiled_instructions([encode_profile(ours, ".pb")], 50),
        Path("x.pb"),
    )
    assert sorted(spelled(theirs)) == sorted(spelled(ours))


@pytest.mark.parametrize("suffix", [".pb", ".pbtxt"])
@pytest.mark.parametrize("cost_us", [math.nan, math.inf, -math.inf, -1.0, 2e15])
def test_what_is_no_time_is_never_written(cost_us, suffix):
    with pytest.raises(
        UserError, match=rf"the cost of {'f' * 32}::fusion.1 is {cost_us}"
    ):
        encode_profile(
            Profile((Cost("a", 1.0), Cost("fusion.1", cost_us, "f" * 32))), suffix
        )


@pytest.mark.parametrize(
    "written, fingerprint, name",
    [
        ("abc::x.1", "abc", "x.1"),
        ("x.1", "", "x.1"),
        ("a::b::c", "", "a::b::c"),
        ("::x", "", "::x"),
    ],
)
def test_only_two_parts_make_a_prefix(written, fingerprint, name):
    cost = decode_profile(
        encode_profile(profile_of((written, 1)), ".pbtxt"), Path("x.pbtxt")
    ).costs[0]
    assert (cost.fingerprint, cost.name, cost.full_name) == (fingerprint, name, written)


def test_published_profiles_are_written_back_byte_for_byte(testdata):
    for path in (testdata / "maxtext_pgle").glob("*.pbtxt"):
        assert encode_profile(read_profile(path), ".pbtxt") == path.read_bytes()


BINARY = encode_profile(profile_of(("a", 1.0)), ".pb")
BAD = {
    "empty.pbtxt": (b"", "empty file"),
    "comment.pbtxt": (b"# nothing\n", "holds no costs"),
    "bom.pbtxt": (b'\xef\xbb\xbfcosts { name: "a" cost_us: 1 }', "byte order mark"),
    "binary.pbtxt": (BINARY, "binary profile in a .pbtxt file"),
    "text.pb": (b'costs { name: "a" cost_us: 1 }', "text profile in a .pb file"),
    "cut.pb": (BINARY[:-2], "damaged or truncated"),
    "field.pbtxt": (b'costs { name: "a" time: 1 }', r"1:19: .*XLA would not parse it"),
    "name.pbtxt": (
        rb'costs { name: "\377" }',
        r"1:22: a name is not UTF-8, so no instruction is called that",
    ),
    "x.txt": (
        b'costs { name: "a" cost_us: 1 }',
        r"XLA ignores .*rename it if it is a profile",
    ),
    "x.pbtxt.gz": (b"", "XLA ignores"),
    "x": (b"", "XLA ignores"),
    "deep.pbtxt": (b"costs {" * 100_000, "XLA would not parse"),
    "deep.pb": (b"\x0b" * 100_000, "damaged"),
    "m.hlo.pb": (
        b"\x0a\x09\x0a\x01m\x12\x04main",
        "another kind of protocol buffer",
    ),  # a module's name and entry
    "trace.pb": (b"\x0a\x06\x08\x01\x12\x02ab", "another kind of protocol buffer"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_with_the_reason(name, tmp_path):
    data, reason = BAD[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=reason) as caught:
        read_profile(tmp_path / name)
    assert "\n" not in caught.value.line()
    assert len(caught.value.what) < 300


def test_a_missing_profile_is_said_so(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_profile(tmp_path / "x.pbtxt")


def test_a_directory_is_read_as_xla_reads_it(tmp_path):
    one, other = "a" * 32, "b" * 32
    (tmp_path / f"{one}.pbtxt").write_text('costs { name: "x" cost_us: 1 }\n')
    (tmp_path / f"{one}.pb").write_bytes(
        encode_profile(profile_of(("not.read", 5.0)), ".pb")
    )
    (tmp_path / f"{other}.pb").write_bytes(
        encode_profile(profile_of(("y", 2.0)), ".pb")
    )
    (tmp_path / "notes.pbtxt").write_text("not read")
    assert spelled(read_profile(tmp_path)) == [
        (f"{one}::x", "1.0"),
        (f"{other}::y", "2.0"),
    ]


def test_a_directory_without_profiles_is_refused(tmp_path):
    with pytest.raises(UserError, match="no profile in this directory"):
        read_profile(tmp_path)


@pytest.mark.parametrize("name", ["x.PBTXT", "x.pbtxt.gz", "x.textproto", "x"])
def test_xla_would_ignore_other_suffixes(name):
    with pytest.raises(UserError, match=r"name it x\.pbtxt"):
        check_suffix(Path(name))


DESCRIBED = Profile(
    costs=(
        Cost(
            "all-gather-start.1",
            812.5,
            kind=CostKind.COLLECTIVE,
            opcode="all-gather",
            shape="bf16[4096,512]",
            samples=18,
            min_us=801.2,
            max_us=830.9,
            spread=0.02,
            trace_name="all-gather.4",
        ),
        Cost(
            "loop_fusion",
            3.0,
            fingerprint="f" * 32,
            kind=CostKind.COMPUTE,
            origin=Origin.ESTIMATED,
        ),
    ),
    provenance={
        "tool": "pgle",
        "step_us": float("nan"),
        "inputs": [{"name": "a.sqlite"}],
    },
    warnings=("one rank only",),
)


@pytest.mark.parametrize("suffix", [".pbtxt", ".pb"])
def test_the_sidecar_gives_back_what_the_profile_cannot_hold(suffix, tmp_path):
    path = tmp_path / f"x{suffix}"
    write_files(profile_files(path, DESCRIBED))
    found = read_profile(path)
    assert (found.costs, found.warnings) == (DESCRIBED.costs, DESCRIBED.warnings)
    assert found.provenance == {
        "tool": "pgle",
        "step_us": None,
        "inputs": [{"name": "a.sqlite"}],
    }


def test_equal_profiles_give_equal_bytes():
    assert profile_files(Path("x.pb"), DESCRIBED) == profile_files(
        Path("x.pb"), replace(DESCRIBED)
    )


def test_a_sidecar_is_json_with_a_schema():
    text = profile_files(Path("x.pbtxt"), DESCRIBED)[Path("x.pbtxt.json")]
    content = json.loads(text, parse_constant=pytest.fail)
    assert content["schema"] == "pgle.profile/1"
    assert [record["name"] for record in content["costs"]] == [
        "all-gather-start.1",
        f"{'f' * 32}::loop_fusion",
    ]


@pytest.mark.parametrize(
    "spoil, reason",
    [
        (lambda text: text.replace("812.5", "812.5 "), None),
        (lambda text: text[:-20], "not JSON"),
        (
            lambda text: text.replace("pgle.profile/1", "pgle.profile/9"),
            "not a sidecar of schema",
        ),
        (
            lambda text: text.replace('"sha256": "', '"sha256": "0'),
            "another version of the profile",
        ),
        (lambda text: text.replace('"samples": 18', '"samples": "many"'), "damaged"),
        (lambda text: text.replace('"loop_fusion', '"other'), None),
        (lambda text: text.replace('::loop_fusion"', '::other"'), "damaged"),
        (lambda text: text.replace('"origin": "measured"', '"origin": 3'), "damaged"),
        (lambda text: "[" * 100_000, "not a sidecar"),
        (
            lambda text: text.replace('"origin"', '"slowest_us": 1.7e308, "origin"'),
            "damaged",
        ),
        (lambda text: "[]", "not a sidecar"),
        (lambda text: text.replace('"warnings": []', '"warnings": 5'), "damaged"),
        (lambda text: text.replace('"samples": 18', '"samples": 1.5'), "damaged"),
        *(
            (
                lambda text, hostile=hostile: text.replace('"tool": "pgle"', hostile),
                "damaged",
            )
            for hostile in (
                '"modules": {}',
                '"modules": null',
                '"modules": [3]',
                '"modules": [{"name": []}]',
                '"tool": null',
                '"modules": [{"fingerprints": "f"}]',
                '"modules": [{"rank_ids": [true]}]',
                '"stat": 5',
                '"completed": {"a": 1}',
            )
        ),
        (
            lambda text: text.replace(
                '"tool": "pgle"', '"modules": [{"launch": {"gap_us": NaN}}]'
            ),
            "not JSON",
        ),
        (
            lambda text: text.replace('"opcode": "', '"opcode": "\udcff'),
            "damaged",
        ),  # a byte that is not UTF-8
        (
            lambda text: text.replace(
                '"tool": "pgle"',
                '"modules": [{"launch": null, "of_a_later_release": [3]}]',
            ),
            None,
        ),
    ],
)
def test_a_sidecar_that_does_not_fit_is_left_aside_with_a_warning(
    spoil, reason, tmp_path
):
    path = tmp_path / "x.pbtxt"
    write_files(profile_files(path, replace(DESCRIBED, warnings=())))
    sidecar = sidecar_path(path)
    sidecar.write_text(spoil(sidecar.read_text()), errors="surrogateescape")
    found = read_profile(path)
    assert spelled(found) == spelled(DESCRIBED)
    if reason is None:
        assert found.warnings == ()
    else:
        assert reason in found.warnings[0]
        assert found.costs[0].origin == Origin.UNKNOWN


def test_what_older_releases_kept_of_single_executions_is_ignored(tmp_path):
    path = tmp_path / "x.pbtxt"
    write_files(profile_files(path, DESCRIBED))
    sidecar = sidecar_path(path)
    text = sidecar.read_text().replace(
        '"origin": "measured"', '"origin": "measured", "occurrences": {"2.0": 812.5}'
    )
    ends = '"ends": [{"module": "jit_step", "collectives": ["all-gather-start.1"], "ns": [[812], [1400]]}],'
    sidecar.write_text(text.replace('  "costs": [', f'  {ends}\n  "costs": ['))
    found = read_profile(path)
    assert (found.costs, found.warnings) == (DESCRIBED.costs, DESCRIBED.warnings)


def test_the_name_of_an_input_need_not_be_utf_8(tmp_path):
    named = replace(DESCRIBED, provenance={"inputs": [{"name": "\udcff.sqlite"}]})
    path = tmp_path / "x.pbtxt"
    write_files(profile_files(path, named))
    assert read_profile(path).provenance == {"inputs": [{"name": r"\udcff.sqlite"}]}
