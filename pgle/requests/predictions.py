"""What is asked of commands that predict steps: `predict`, `rehearse`, `tune`, `scale`."""

from __future__ import annotations

from attrs import field, frozen

from pgle.files import AnyPath
from pgle.requests import shared
from pgle.requests.given import optional_path, path
from pgle.requests.kinds import FILE
from pgle.requests.option import argument, option
from pgle.requests.shared import Network, OnTarget, PerHost


@frozen(slots=False)
class Predict(OnTarget, PerHost, Network):
    """A scheduled module, and what it would run on."""

    hlo: AnyPath = field(
        converter=path,
        metadata=argument(
            "HLO",
            "a dump after optimizations, a schedule dump, or a folder of dumps.",
            kind=FILE,
        ),
    )
    profile: AnyPath | None = field(
        default=None,
        kw_only=True,
        converter=optional_path,
        metadata=option(
            "--profile",
            "Measured costs; without, all are estimated.",
            metavar="PROFILE",
            kind=FILE,
            meaning="measured costs; None: all are estimated.",
        ),
    )
    target: str | None = field(
        default=None,
        kw_only=True,
        metadata=shared.target(
            "GPU, as for 'pgle rehearse'; default: as the dump says.",
            "GPU by name or description; None: as the dump says.",
        ),
    )
    module: str = field(
        default="",
        kw_only=True,
        metadata=shared.module(
            "Which module of a dump directory; else the one with the longest step.",
            "regular expression searched in module names; "
            "empty: the one with the longest step.",
        ),
    )
    devices_per_host: int | None = field(
        default=None,
        kw_only=True,
        metadata=shared.devices_per_host("GPUs that share NVLink; else 8, or 72."),
    )
