"""Bad xplane input ends in one line that says what, where and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.trace.xplane.read import find_xplanes, read_xplane
from pgle.xla.protos import xplane_pb2


def error_of(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_xplane([path])
    line = caught.value.line()
    assert "\n" not in line
    assert line.startswith(str(path))
    assert caught.value.remedy
    return line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "h.xplane.pb"


def test_missing(file: Path):
    assert "no such file" in error_of(file)


def test_empty(file: Path):
    file.touch()
    assert "is empty" in error_of(file)


@pytest.mark.parametrize(
    "content",
    [
        b"SQLite format 3\x00" + bytes(200),
        b"costs { name: 'a' cost_us: 1 }",
        b"\x0a\x0c\x0a\x01a\x11" + bytes(8),
        b"PAR1" + bytes(50),
        b"hello, world",
        bytes(64),
        b"\xff" * 64,
    ],
    ids=["sqlite", "profile text", "profile", "parquet", "text", "zeros", "ones"],
)
def test_another_kind_of_file(file: Path, content: bytes):
    file.write_bytes(content)
    assert "is not an xplane" in error_of(file)


def test_an_hlo_dump(testdata: Path, file: Path):
    file.write_bytes(
        (
            testdata
            / "jax_xplane"
            / "hlo_proto"
            / "jit_forward_3d_conv(15).hlo_proto.pb"
        ).read_bytes()
    )
    assert "is not an xplane" in error_of(file)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999])
def test_truncated_anywhere(testdata: Path, file: Path, share: float):
    whole = (
        testdata / "jax_xplane" / "jax_conv_minimal_08_tw003.xplane.pb"
    ).read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    assert "cut short or damaged" in error_of(file)


def test_one_byte_overwritten_is_never_a_traceback(testdata: Path, file: Path):
    whole = (testdata / "jax_xplane" / "jax08_gemm.xplane.pb").read_bytes()
    start = whole.index(b"Stream #")
    for offset in range(0, 2000, 7):
        damaged = bytearray(whole)
        damaged[start + offset] ^= 0xFF
        file.write_bytes(bytes(damaged))
        try:
            read_xplane([file])
        except UserError as error:
            assert "\n" not in error.line()


@pytest.mark.parametrize(
    "length",
    [
        b"\xff\xff\xff\xff\x07",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff" * 9 + b"\x01",
    ],
)
def test_huge_claimed_length_of_an_event(file: Path, length: bytes):
    line = b"\x12\x09Stream #1" + b"\x22" + length + b"\x08\x01"
    plane = b"\x12\x0d/device:GPU:0" + b"\x1a" + bytes([len(line)]) + line
    file.write_bytes(b"\x0a" + bytes([len(plane)]) + plane)
    assert "cut short or damaged" in error_of(file)


def test_huge_metadata_number(file: Path):
    plane = xplane_pb2.XPlane(name="/device:GPU:0")
    plane.stat_metadata[1 << 60].name = "hlo_op"
    plane.lines.add(name="Stream #1").events.add().stats.add(
        metadata_id=1 << 60, str_value="a"
    )
    file.write_bytes(xplane_pb2.XSpace(planes=[plane]).SerializeToString())
    assert "stat metadata number" in error_of(file)


def test_only_host_planes(file: Path):
    file.write_bytes(
        xplane_pb2.XSpace(
            planes=[xplane_pb2.XPlane(name="/host:CPU")]
        ).SerializeToString()
    )
    assert "holds no GPU activity (planes: /host:CPU)" in error_of(file)


def test_gpu_planes_without_events(file: Path):
    file.write_bytes(
        xplane_pb2.XSpace(
            planes=[xplane_pb2.XPlane(name="/device:GPU:0")]
        ).SerializeToString()
    )
    assert "its GPU planes hold no events" in error_of(file)


def test_kernels_of_no_instruction(file: Path):
    plane = xplane_pb2.XPlane(name="/device:GPU:0")
    plane.lines.add(name="Stream #1").events.add(duration_ps=1000)
    file.write_bytes(xplane_pb2.XSpace(planes=[plane]).SerializeToString())
    assert (
        "none of its 1 GPU activities is tied to an HLO instruction (1 launched outside of any XLA program)"
        in error_of(file)
    )


def changed_host_event(testdata: Path, file: Path, **values: int) -> None:
    """The CPU backend's trace with other values in its first thunk, or in the line of it."""
    space = xplane_pb2.XSpace.FromString(
        (testdata / "jax_xplane" / "cpu_4dev_jax_0_10_2.xplane.pb").read_bytes()
    )
    (plane,) = (plane for plane in space.planes if plane.name == "/host:CPU")
    hlo_op = next(
        number for number, item in plane.stat_metadata.items() if item.name == "hlo_op"
    )
    thunks = ((line, event) for line in plane.lines for event in line.events)
    line, event = next(
        pair
        for pair in thunks
        if any(stat.metadata_id == hlo_op for stat in pair[1].stats)
    )
    for name, value in values.items():
        setattr(line if name == "timestamp_ns" else event, name, value)
    file.write_bytes(space.SerializeToString())


def test_a_negative_duration_on_the_host_plane_is_damage(testdata: Path, file: Path):
    changed_host_event(testdata, file, duration_ps=-5_000_000)
    assert "negative duration" in error_of(file)


@pytest.mark.parametrize("origin", [2**63 - 1, -(2**63)])
def test_times_that_64_bits_cannot_add_are_damage(
    testdata: Path, file: Path, origin: int
):
    changed_host_event(testdata, file, timestamp_ns=origin)
    assert "impossible time" in error_of(file)


def test_log_directory_without_a_trace(tmp_path: Path):
    with pytest.raises(UserError, match=r"holds no \.xplane\.pb file"):
        find_xplanes(tmp_path)


def test_log_directory_that_does_not_exist(tmp_path: Path):
    with pytest.raises(UserError, match="no such file or directory"):
        find_xplanes(tmp_path / "none")
