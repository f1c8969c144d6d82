"""The recorded HLO dumps, and the same made afresh by the installed jax."""

import fcntl
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

HLO = Path(__file__).parents[2] / "testdata" / "hlo"


def has_cuda_plugin() -> bool:
    return any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13))


@pytest.fixture(
    scope="session",
    params=["jax-0.10.2", "jax-0.12.0.1", pytest.param("live", marks=[pytest.mark.rehearse, pytest.mark.slow])],
)
def dumps(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as testdata/hlo/README.md describes it."""
    if request.param != "live":
        return HLO / str(request.param)
    if not has_cuda_plugin():
        pytest.skip("needs the CUDA plugin wheels")
    parent = tmp_path_factory.getbasetemp()
    live = (parent.parent if "PYTEST_XDIST_WORKER" in os.environ else parent) / "hlo-live"
    with live.with_suffix(".lock").open("w") as lock:  # compiled once for all processes of a test run
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not live.exists():
            made = Path(tempfile.mkdtemp(dir=live.parent))
            subprocess.run([sys.executable, str(HLO / "record.py"), str(made)], check=True)
            made.rename(live)
    return live
