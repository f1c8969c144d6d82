"""Whether two stages ran the same program, so that the costs of one fit the other."""

from __future__ import annotations

from collections.abc import Mapping

from pgle.run.directory.manifest import StageRecord
from pgle.xla.flags.text import parse_flags, same_value

EXPECTED_TO_DIFFER = frozenset(
    {
        "xla_gpu_enable_latency_hiding_scheduler",
        "xla_gpu_enable_analytical_sol_latency_estimator",
        "xla_gpu_disable_async_collectives",
        "xla_gpu_enable_command_buffer",
        "xla_gpu_pgle_profile_file_or_directory_path",
        "xla_gpu_pgle_accuracy_checker",
        "xla_dump_to",
        "xla_dump_hlo_as_proto",
        "xla_dump_hlo_as_text",
        "xla_dump_latency_hiding_schedule",
    }
)
"""Flags by which a profile run and a performance run of one program differ."""


def same_program(first: StageRecord, second: StageRecord) -> tuple[str, ...]:
    """In what two stages differ so that the costs of one need not fit the other: one line each, with what follows.

    Compared are versions, command, flags (but `EXPECTED_TO_DIFFER`), GPUs, driver and number of ranks.
    """
    found: list[str] = []
    for name in sorted({*first.versions, *second.versions}):
        found += _differs(name, first.versions.get(name), second.versions.get(name), _BY_VERSION.get(name, _MAY))
    found += _differs("command", " ".join(first.argv), " ".join(second.argv), "the program may not be the same")
    mine, theirs = (parse_flags(record.xla_flags).effective() for record in (first, second))
    for name in sorted({*mine, *theirs} - EXPECTED_TO_DIFFER):
        if name not in mine or name not in theirs or not same_value(mine[name], theirs[name]):
            found += _differs(
                f"--{name}", _value(mine, name), _value(theirs, name), "names and fingerprints may change"
            )
    found += _differs("GPU", _gpus(first), _gpus(second), "costs do not carry over")
    found += _differs("driver", _drivers(first), _drivers(second), "costs may differ")
    found += _differs("number of ranks", str(first.ranks), str(second.ranks), "the modules are not the same")
    return tuple(found)


_MAY = "costs or names may differ"
_BY_VERSION = {
    "python": "seldom matters",
    "jax": "the program that XLA gets may differ",
    "jaxlib": "names and fingerprints differ: profile again",
    "protobuf": "seldom matters",
    "numpy": "seldom matters",
} | dict.fromkeys(
    ("jax-cuda12-pjrt", "jax-cuda13-pjrt", "jax-cuda12-plugin", "jax-cuda13-plugin"),
    "names and fingerprints differ: profile again",
)


def _differs(what: str, first: str | None, second: str | None, consequence: str) -> list[str]:
    if first == second:
        return []
    return [f"{what} differs: {first or 'unset'} and {second or 'unset'}; {consequence}"]


def _value(values: Mapping[str, str | None], name: str) -> str | None:
    if name not in values:
        return None
    value = values[name]
    return "true" if value is None else value or "(empty)"


def _gpus(record: StageRecord) -> str:
    names = [gpu.name for gpu in record.gpus]
    return ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))


def _drivers(record: StageRecord) -> str:
    return ", ".join(sorted({gpu.driver for gpu in record.gpus}))
