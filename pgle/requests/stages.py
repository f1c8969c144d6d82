"""What is asked of commands that run a program or look at a run."""

from __future__ import annotations

from attrs import field, frozen

from pgle.requests import shared
from pgle.requests.option import option
from pgle.requests.shared import Captured, Flags, OnDevices


@frozen(slots=False)
class Stage(OnDevices, Flags, Captured):
    """A program that is launched: `profile`, `perf`, `run`."""

    target: str = field(
        default="h100", kw_only=True, metadata=shared.target(shared.GPU_HELP)
    )
    devices: int | None = field(
        default=None,
        kw_only=True,
        metadata=option(
            "--devices",
            "Devices to simulate.  [default: 4]",
            metavar="N",
            kind=shared.DEVICES,
        ),
    )
