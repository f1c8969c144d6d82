"""Rehearsal without compiling: requests, forms of modules, texts of XLA's errors."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pgle.errors import UserError
from pgle.run.ask import jax_private
from pgle.run.rehearse.compile import RehearsalRequest, fingerprint_of, matches_job, rehearse_compile, xla_flags
from pgle.run.rehearse.worker import NO_TOOLKIT, hlo_module_bytes, module_kind


@pytest.fixture
def request_for(tmp_path: Path) -> RehearsalRequest:
    module = tmp_path / "step.mlir"
    module.write_text("module @step {}")
    return RehearsalRequest(module, "target", tmp_path / "dump")


def changed(request: RehearsalRequest, **changes: object) -> RehearsalRequest:
    from dataclasses import replace

    return replace(request, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "UNAVAILABLE: No PTX compilation provider is available. Neither driver nor ptxas",
        "INTERNAL: libdevice not found at ./libdevice.10.bc",
        "NOT_FOUND: Couldn't find a suitable version of ptxas",
    ],
)
def test_a_missing_toolkit_is_no_failure(text: str) -> None:
    assert NO_TOOLKIT.search(text)


def test_other_errors_are() -> None:
    assert not NO_TOOLKIT.search("INVALID_ARGUMENT: Found 3 missing instructions. Discarding the profile.")


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("a", b"ML\xefR\x00\x01", "mlir"),
        ("jax_ir0000_jit_f_compile.mlir", b'#loc = loc("x")\nmodule @jit_f {\n}', "mlir"),
        ("f.txt", b"HloModule jit_f, is_scheduled=true", "hlo-text"),
        ("module_0001.jit_f.before_optimizations.hlo.pb", b"\x0a\x05\x0a\x03abc", "hlo"),
        ("module_0001.jit_f.before_optimizations.hlo.pb.xz", b"\x0a\x05\x0a\x03abc", "hlo"),
        ("step.bin", b"\x14\x00\x00\x00\x00\x00", "export"),
    ],
)
def test_form_of_a_module(name: str, data: bytes, kind: str) -> None:
    assert module_kind(name, data) == kind


def test_module_inside_an_hlo_proto() -> None:
    module = b"\x0a\x03abc\x12\x01x"
    assert hlo_module_bytes(b"\x0a" + bytes([len(module)]) + module, Path("x")) == module


def test_an_hlo_module_proto_is_taken_as_it_is() -> None:
    assert hlo_module_bytes(b"\x0a\x03abc\x12\x01x", Path("x")) == b"\x0a\x03abc\x12\x01x"


def test_no_proto_at_all() -> None:
    with pytest.raises(UserError, match=r"x.pb: not an HLO dump"):
        hlo_module_bytes(b"hello", Path("x.pb"))


def test_own_flags_come_first_so_that_the_users_win(request_for: RehearsalRequest) -> None:
    flags = xla_flags(changed(request_for, flags=("--xla_dump_hlo_as_proto=false",)), Path("/d")).split()
    assert flags == [
        "--xla_dump_to=/d",
        "--xla_dump_hlo_as_proto=true",
        "--xla_dump_latency_hiding_schedule=true",
        "--xla_dump_hlo_as_proto=false",
    ]


def test_values_with_blanks_are_quoted(request_for: RehearsalRequest) -> None:
    assert xla_flags(request_for, Path("/a b")).startswith("--xla_dump_to='/a b' ")


def test_profile_as_option_is_no_flag(request_for: RehearsalRequest) -> None:
    request = changed(request_for, profile=Path("p.pb"), profile_as="option")
    assert "pgle_profile" not in xla_flags(request, Path("/d"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"module": Path("nowhere.mlir")}, "nowhere.mlir: no such file"),
        ({"topology": "8"}, "topology '8' is not SLICESxHOSTSxDEVICES; write 1x1x8"),
        ({"topology": "0x1x4"}, "is not SLICESxHOSTSxDEVICES"),
        ({"flags": ("xla_x=1",)}, "does not begin with --"),
        ({"python": "/nowhere/python"}, "/nowhere/python: cannot start Python"),
    ],
)
def test_requests_that_cannot_be(request_for: RehearsalRequest, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        rehearse_compile(changed(request_for, **changes))


def test_a_used_folder_is_left_alone(request_for: RehearsalRequest) -> None:
    request_for.dump_dir.mkdir()
    (request_for.dump_dir / "old.txt").write_text("old")
    with pytest.raises(UserError, match=r"is not empty; choose a new folder"):
        rehearse_compile(request_for)
    assert [path.name for path in request_for.dump_dir.iterdir()] == ["old.txt"]


def test_a_python_without_jax(request_for: RehearsalRequest, tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(UserError, match=r"jax cannot be imported .*pip install 'pgle\[rehearse\]'"):
        rehearse_compile(changed(request_for, python=str(bare)))


def test_a_child_that_dies(request_for: RehearsalRequest, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho about to die\nkill -SEGV $$\n")
    broken.chmod(0o755)
    with pytest.raises(UserError, match=r"crashed \(signal 11\): about to die; the whole log: .*xla.log"):
        rehearse_compile(changed(request_for, python=str(broken)))


@pytest.mark.parametrize(("said", "rescued"), [("Can't find libdevice directory", True), ("out of luck", False)])
def test_a_crash_after_scheduling(request_for: RehearsalRequest, tmp_path: Path, said: str, rescued: bool) -> None:
    started = '{"module_name": "jit_f", "num_partitions": 4, "start_s": 0, "memory": {}, "jaxlib": "0.12.0.1"}'
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\ncd $(dirname $3)\necho '{started}' > started.json\n"
        f'echo x > module_0001.jit_f.sm_9.0_gpu_after_optimizations.hlo.pb\necho "{said}"\nkill -SEGV $$\n'
    )
    python.chmod(0o755)
    request = changed(request_for, python=str(python))
    if rescued:
        result = rehearse_compile(request)
        assert (result.module_name, result.stopped_for_toolkit, result.memory_bytes) == ("jit_f", True, None)
    else:
        with pytest.raises(UserError, match=r"crashed \(signal 11\)"):
            rehearse_compile(request)


def test_fingerprint_of_a_real_dump(testdata: Path) -> None:
    # testdata/pax_fsdp4/README.md: processes 0 and 3 differ
    name = "dump/module_0040.pjit__wrapped_step_fn.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
    found = [fingerprint_of(testdata / "pax_fsdp4" / process / name) for process in ("proc0", "proc3")]
    assert found == ["25fa0b3e673a92036f22550cd7bcb068", "04555b1419fd4e5b8933dc47fbf80dbb"]


def test_a_dump_without_fingerprint_matches_nothing(testdata: Path, tmp_path: Path) -> None:
    path = tmp_path / "x.hlo.pb"
    path.write_bytes(b"\x0a\x05\x0a\x03abc")
    with pytest.raises(UserError, match=r"holds no fingerprint"):
        matches_job(None, path)  # type: ignore[arg-type]


def test_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_private, "_installed", lambda name: False)
    with pytest.raises(UserError, match=r"CUDA plugin of jax is not installed.*; pip install 'pgle\[rehearse\]'"):
        jax_private.topology_devices("target", "1x1x1")


@pytest.mark.parametrize("release", ["0.4.30", "0.4.36"])
def test_releases_that_cannot_rehearse(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    jaxlib = pytest.importorskip("jaxlib")
    monkeypatch.setattr(jaxlib, "__version__", release)
    with pytest.raises(UserError, match=rf"jaxlib {release} cannot compile for a GPU.*; install jax 0.4.38 or newer"):
        jax_private.version()


class Bytes:
    """The client of jax 0.6 and 0.7."""

    def compile(self, computation: bytes, devices: tuple[object, ...], options: object) -> bytes:
        if not isinstance(computation, bytes) or not devices:
            raise TypeError("compile(): incompatible function arguments")
        return computation


class BytesAlone:
    """The client of jax 0.4 and 0.5."""

    def compile(self, computation: bytes, compile_options: object) -> bytes:
        return computation


@pytest.mark.parametrize("client", [Bytes(), BytesAlone()])
def test_a_client_gets_the_arguments_it_takes(
    client: Bytes | BytesAlone, monkeypatch: pytest.MonkeyPatch, testdata: Path
) -> None:
    from jax._src.lib import xla_client

    monkeypatch.setattr(xla_client, "DeviceList", tuple)
    program = jax_private.program_from_mlir((testdata / "stablehlo" / "fsdp_mlp_jax_0.10.2.mlir").read_bytes())
    devices = [SimpleNamespace(id=number, client=client) for number in range(program.num_partitions)]
    assert jax_private.compile_for(devices, program, fdo_profile=None).startswith(b"ML\xefR")
