"""What a task on another machine takes over from this one."""

from __future__ import annotations

from pgle.run.process.on_worker import travelling


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
