"""XProf: the xplanes of a run laid out as it wants them, and its server started on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pgle.errors import UserError, WorkloadError, shell_code
from pgle.next import Next
from pgle.run.inputs.traces import stage_of

XPLANE = ".xplane.pb"
INSTALL = "pip install 'pgle[xprof]'; without it 'pgle report RUN -o report.html' shows the same trace"


def find_xprof() -> Path:
    """XProf's program, of the environment that pgle runs in or on the PATH.

    Raises:
        UserError: there is none.
    """
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    found = shutil.which("xprof", path=places)
    if found is None:
        raise UserError("XProf is not installed", remedy=INSTALL)
    return Path(found)


def find_xplanes(path: Path) -> tuple[Path, ...]:
    """The xplanes of a run directory, of a stage of it, of a log directory of the JAX profiler, or the file itself.

    Raises:
        UserError: there are none.
    """
    if not path.exists():
        raise UserError("no such file or directory", where=path, remedy="check the path")
    stage = stage_of(path)
    folder = path if stage is None else stage.path / "trace"
    found = (path,) if path.is_file() else tuple(sorted(folder.rglob(f"*{XPLANE}")))
    if not found or not all(file.name.endswith(XPLANE) for file in found):
        raise UserError(
            "holds no trace of the JAX profiler (*.xplane.pb), and XProf reads no other",
            where=path,
            remedy=f"look at it with: {Next.of('report', path, '-o', 'report.html')}",
        )
    return found


@contextmanager
def log_directory(xplanes: Sequence[Path]) -> Iterator[Path]:
    """A directory with one session of all xplanes, by links; one host each, named apart where they are named alike."""
    with TemporaryDirectory(prefix="pgle-view-") as root:
        session = Path(root) / "plugins" / "profile" / "run"
        session.mkdir(parents=True)
        for file in xplanes:
            name, number = file.name, 1
            while (session / name).is_symlink():
                number += 1
                name = f"{file.name.removesuffix(XPLANE)}-{number}{XPLANE}"
            (session / name).symlink_to(file.absolute())
        yield Path(root)


def view(path: Path, port: int, tell: Callable[[str], None]) -> None:
    """Start XProf on a run, and wait until it is ended with Ctrl-C.

    Args:
        path: as of `find_xplanes`.
        port: that it listens on.
        tell: called with where to look.

    Raises:
        UserError: XProf is not installed, or there is nothing for it.
        WorkloadError: XProf ended with an error.
    """
    xprof, xplanes = find_xprof(), find_xplanes(path)
    with log_directory(xplanes) as folder:
        count = f"{len(xplanes)} trace{'s' * (len(xplanes) != 1)}"
        tell(f"XProf shows {count} of {path} at http://localhost:{port}/ (Ctrl-C ends it)")
        with suppress(KeyboardInterrupt):
            code = subprocess.run([str(xprof), f"--logdir={folder}", f"--port={port}"], check=False).returncode
            if code:
                code = shell_code(code)
                raise WorkloadError(
                    code, f"XProf ended with exit code {code}; is port {port} taken? --port chooses another"
                )
