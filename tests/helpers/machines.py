"""Machines that are made up, for tests of `pgle doctor`: nothing in them comes from the one that
runs the tests.
"""

from dataclasses import replace
from pathlib import Path

from pgle.run.ask.jaxlib import Installed
from pgle.run.ask.machine import Machine
from pgle.run.directory.manifest import Gpu

SMI_4_H100 = "NVIDIA H100 80GB HBM3, 580.65.06, 81559, 9.0, GPU-1\n" * 4
VERSIONS = {
    "python": "3.12.1",
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "jax-cuda13-plugin": "0.10.2",
    "jax-cuda13-pjrt": "0.10.2",
    "numpy": "2.1.0",
    "protobuf": "5.29.0",
}
H100 = Gpu("NVIDIA H100 80GB HBM3", "580.65.06", 81559, "9.0", "GPU-1")
PARAMS = "ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {}\n"


def machine(
    *,
    smi=SMI_4_H100,
    says="",
    files=(),
    programs=(),
    environ=(),
    processes=(),
    versions=VERSIONS,
    **changes,
):
    texts = dict(files)
    made_up = Machine(
        ask=lambda argv: (smi is not None, smi or says),
        read=texts.get,
        which=dict(programs).get,
        glob=lambda pattern: tuple(path for path in texts if Path(path).match(pattern)),
        environ=dict(environ),
        processes=lambda: frozenset(processes),
        free_bytes=lambda path: 100 << 30,
        writable=lambda path: True,
        is_root=False,
        python="/usr/bin/python3",
        installed=Installed(dict(versions), "/site"),
        nsys=lambda: None,
    )
    return replace(made_up, **changes)
