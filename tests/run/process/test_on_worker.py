"""What a task on another machine takes over from this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pgle.run.process.on_worker import end_work, kept_for, travelling

_seen: list[str] = []


def test_flags_and_settings_travel_and_credentials_do_not() -> None:
    ours = {
        "XLA_FLAGS": "--xla_gpu_autotune_level=0",
        "PATH": "/usr/bin:/bin",
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "JAX_PLATFORMS": "cuda",
        "JAX_COMPILER_ENABLE_REMAT_PASS": "1",
    }
    others = {
        "TF_TOKEN_x": "example",
        "TF_VAR_db_password": "example",
        "TF_VAR_region": "example",
        "JAX_API_TOKEN": "example",
        "PGLE_STORE": "https://me:example1@host/a",
    }
    assert travelling({**ours, **others}) == ours


@contextmanager
def _opened(request: str) -> Iterator[str]:
    _seen.append(f"open {request}")
    yield request
    _seen.append(f"close {request}")


def test_what_tasks_share_is_closed_for_another_request_and_at_the_end() -> None:
    for request in ("first", "first", "second"):
        assert kept_for(request, _opened) == request
    end_work()
    assert _seen == ["open first", "close first", "open second", "close second"]
