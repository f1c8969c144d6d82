"""The variable that keeps OpenBLAS to one thread never reaches the user's program."""

from __future__ import annotations

import os

import pytest

from pgle.cli.main import one_blas_thread


def test_the_variable_is_set_while_numpy_is_imported_and_gone_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    with one_blas_thread():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    assert "OPENBLAS_NUM_THREADS" not in os.environ


def test_the_users_own_number_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    with one_blas_thread():
        assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
    assert os.environ["OPENBLAS_NUM_THREADS"] == "7"
