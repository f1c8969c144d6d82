"""The hook in the process of the tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from pgle.run.hook import HOOK_SITE

QUICK = "jax_disable_most_optimizations"


@pytest.fixture
def hook_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of the hook can be imported; programs run once, so they are compiled quickly."""
    import jax

    monkeypatch.setattr(sys, "path", [*sys.path, str(HOOK_SITE)])
    jax.config.update(QUICK, True)
    yield
    jax.config.update(QUICK, False)


@pytest.fixture
def own_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The functions of jax that differentiate are put back after a test that replaces them."""
    import jax

    for name in ("grad", "value_and_grad"):
        monkeypatch.setattr(jax, name, getattr(jax, name))
