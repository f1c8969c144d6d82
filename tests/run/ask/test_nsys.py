"""Reports, and an nsys that says what the real one says; with the marker nsys, the real one
itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pgle.errors import UserError
from pgle.run.ask import nsys
from pgle.run.inputs.traces import read_traces

REPORT = b"NVIDIA Tegra Profiler Report 2023@4@4@54-234433681190v0.\n"
SYNTHETIC = (
    Path(__file__).parents[3] / "testdata" / "nsys_synthetic" / "synthetic_cases.sqlite"
)

needs_nsys = [
    pytest.mark.nsys,
    pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed"),
]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a program called nsys on the PATH, and nothing else of nsys."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def write(
        export: str, version: str = "2025.1.1.65-251135540420v0", name: str = "nsys"
    ) -> None:
        program = folder / name
        program.write_text(
            f'#!/bin/sh\nif [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version {version}"; exit; fi\n'
            f'for last; do case "$previous" in --output|--output-file) out="$last";; esac; previous="$last"; done\n'
            f"{export}\n"
        )
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setattr(nsys, "PLACES", ())
    monkeypatch.setattr(nsys, "IMPORTERS", ())
    monkeypatch.setattr(
        shutil,
        "which",
        lambda name: str(folder / name) if (folder / name).exists() else None,
    )
    return write


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "rank 0.nsys-rep"
    path.write_bytes(REPORT)
    return path


@pytest.mark.parametrize(
    ("head", "version"),
    [
        (b"NVIDIA Tegra Profiler Report 1.\n", nsys.OLD_FORMAT),
        (b"NVIDIA Tegra Profiler Report 2023@4@4@54-234433681190v0.", (2023, 4, 4)),
        (b"NVIDIA Tegra Profiler Report 2025@5@1@121-255136380782v0.", (2025, 5, 1)),
    ],
)
def test_a_report_tells_its_version(
    tmp_path: Path, head: bytes, version: tuple[int, ...]
) -> None:
    (tmp_path / "x.nsys-rep").write_bytes(head + b"\0more")
    assert nsys.report_version(tmp_path / "x.nsys-rep") == version


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "no such file"), (b"", "is empty"), (b"hello", "not an Nsight")],
)
def test_what_is_no_report_is_an_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "x.nsys-rep").write_bytes(content)
    with pytest.raises(UserError, match=message):
        nsys.report_version(tmp_path / "x.nsys-rep")


def test_a_report_is_read_through_an_export_that_is_gone_afterwards(
    install, report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    install(f'cp "{SYNTHETIC}" "$out"')
    trace = read_traces([report])
    assert len(trace) == 170
    assert (trace.sources[0].path, trace.sources[0].format) == (str(report), "nsys-rep")
    assert trace.devices[0].process == "rank 0:4242"
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bin",
        "rank 0.nsys-rep",
        "tmp",
    ]


def test_only_the_tables_we_read_are_exported_where_nsys_can(
    install, report: Path, tmp_path: Path
) -> None:
    install(f'echo "$@" > "{tmp_path}/said"; cp "{SYNTHETIC}" "$out"')
    read_traces([report])
    assert "--tables StringIds,NVTX_EVENTS" in (tmp_path / "said").read_text()
    install(
        f'echo "$@" > "{tmp_path}/said"; cp "{SYNTHETIC}" "$out"',
        version="2022.4.2.1-df9881f",
    )
    report.write_bytes(b"NVIDIA Tegra Profiler Report 1.\n")
    read_traces([report])
    assert "--tables" not in (tmp_path / "said").read_text()


def test_an_error_of_the_export_names_the_report(install, report: Path) -> None:
    install('echo "no database" > "$out"')
    with pytest.raises(UserError, match=r"rank 0\.nsys-rep: not a SQLite database"):
        read_traces([report])


def test_an_older_nsys_is_not_asked(install, report: Path, tmp_path: Path) -> None:
    install(f'touch "{tmp_path}/asked"', version="2022.4.2.1-df9881f")
    with (
        pytest.raises(
            UserError, match=r"needs nsys >= 2023\.4\.4; installed is 2022\.4\.2\.1"
        ),
        nsys.exported(report),
    ):
        pass
    assert not (tmp_path / "asked").exists()


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (
            "Exportation error: Version number is invalid: 2023@4@4@54-1v0",
            "needs nsys >= 2023",
        ),
        ("Exportation error: Cannot read from stream.", "damaged report"),
        (
            "Exportation error: Section Table Reference magic number mismatch.",
            "damaged report",
        ),
        (
            "Exportation error: database or disk is full",
            "no room for the export.*TMPDIR",
        ),
        (
            "Exportation error: the moon is full",
            r"exit code 1 \(Exportation error: the moon is full\)",
        ),
    ],
)
def test_what_nsys_says_becomes_a_remedy(
    install,
    report: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    message: str,
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    install(f'touch "$out"; echo "Processing [=== 30%" >&2; echo "{says}" >&2; exit 1')
    with pytest.raises(UserError, match=message), nsys.exported(report):
        pass
    assert not list(tmp_path.rglob("*.sqlite"))


def test_an_nsys_that_is_killed_is_said(install, report: Path, tmp_path: Path) -> None:
    install("kill -9 $$")
    with pytest.raises(UserError, match="ended by signal 9"), nsys.exported(report):
        pass


def test_without_nsys_the_remedy_is_named(
    install, report: Path, tmp_path: Path
) -> None:
    with (
        pytest.raises(
            UserError,
            match=r"needs nsys, which is not installed.*nsys export --type sqlite",
        ),
        nsys.exported(report),
    ):
        pass


def test_a_raw_recording_is_imported_first(install, tmp_path: Path) -> None:
    (tmp_path / "x.qdstrm").write_bytes(b"raw")
    install(f'cp "{SYNTHETIC}" "$out"')
    with pytest.raises(UserError, match="needs QdstrmImporter"):
        read_traces([tmp_path / "x.qdstrm"])
    install(
        "printf 'NVIDIA Tegra Profiler Report 1.' > \"$out\"", name="QdstrmImporter"
    )
    assert len(read_traces([tmp_path / "x.qdstrm"])) == 170


class TestRealNsys:
    pytestmark = needs_nsys

    @pytest.fixture
    def recorded(self, tmp_path: Path) -> Path:
        command = [
            "nsys",
            "profile",
            "--trace=nvtx",
            "--sample=none",
            "--cpuctxsw=none",
            "-o",
            str(tmp_path / "x"),
            "true",
        ]
        subprocess.run(command, check=False, capture_output=True, timeout=120)
        found = [
            path
            for suffix in (".nsys-rep", ".qdstrm")
            if (path := tmp_path / f"x{suffix}").exists()
        ]
        if not found:
            pytest.skip("nsys cannot record here")
        return found[0]

    def test_its_version_is_found(self) -> None:
        found = nsys.find_nsys()
        assert found is not None
        assert found.version > (2020,)

    def test_a_recording_without_a_gpu_is_exported_and_refused(
        self, recorded: Path
    ) -> None:
        with pytest.raises(UserError, match="no NVTX ranges"):
            read_traces([recorded])

    def test_a_truncated_report_is_damaged(
        self, recorded: Path, tmp_path: Path
    ) -> None:
        if recorded.suffix == ".qdstrm":
            recorded = nsys._imported(recorded, tmp_path)
        cut = tmp_path / "cut.nsys-rep"
        cut.write_bytes(recorded.read_bytes()[:3000])
        with pytest.raises(UserError, match="damaged report"), nsys.exported(cut):
            pass

    def test_a_report_of_a_later_nsys_is_refused(
        self, report: Path, tmp_path: Path
    ) -> None:
        report.write_bytes(b"NVIDIA Tegra Profiler Report 2099@1@1@1-1v0.\n")
        with (
            pytest.raises(UserError, match=r"needs nsys >= 2099\.1\.1"),
            nsys.exported(report),
        ):
            pass
