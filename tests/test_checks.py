"""The library and the command line take the same numbers, switches and texts, by one table of
rules.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import fields_dict

import pgle
from pgle.cli.main import FILES, LazyGroup, run
from pgle.errors import UserError
from pgle.requests.kinds import Number, Portion, Switch
from pgle.requests.looks import Analyze, Confirm, OrderOfRanks
from pgle.requests.option import Request, declared
from pgle.requests.predictions import Advise, Predict, Rehearse, Releases, Scale, Tune
from pgle.requests.profiles import Convert, Verify
from pgle.requests.shared import Network
from pgle.requests.steps import Compare

NAN = float("nan")


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (pgle.compare, {"fail_slower": NAN}),
        (pgle.compare, {"fail_slower": -0.01}),
        (pgle.compare, {"fail_slower": 2}),
        (pgle.compare, {"confidence": -1}),
        (pgle.compare, {"confidence": 95}),
        (pgle.compare, {"same_within": NAN}),
        (pgle.compare, {"warmup": -1}),
        (pgle.compare, {"warmup": 1.5}),
        (pgle.compare, {"paired": "false"}),
        (pgle.verify, {"min_time_coverage": 1.5}),
        (pgle.confirm, {"min_collectives": NAN}),
        (pgle.predict, {"network_gb_s": -1}),
        (pgle.predict, {"network_gb_s": float("inf")}),
        (pgle.predict, {"devices_per_host": 0}),
        (pgle.predict, {"devices_per_host": True}),
        (pgle.predict, {"module": "("}),
        (pgle.rehearse, {"devices": 0}),
        (pgle.rehearse, {"devices": "8"}),
        (pgle.rehearse, {"flags": "--xla_a=1"}),
        (pgle.rehearse, {"quiet_s": NAN}),
        (pgle.rehearse, {"cached": "no"}),
        (pgle.tune, {"budget": 0, "output": "x"}),
        (pgle.scale, {"devices": (8, 0)}),
        (pgle.scale, {"measured_us": {8: NAN}}),
        (pgle.convert, {"force": "false"}),
    ],
)
def test_the_library_refuses_what_the_command_line_refuses(
    function: Callable[..., Any], given: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as caught:
        function(tmp_path / "absent", **given)
    assert caught.value.where in given


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "a", "b", "--fail-slower", "nan"],
        ["compare", "a", "b", "--confidence", "-1"],
        ["predict", "a", "--network", "-1"],
        ["predict", "a", "--devices-per-host", "0"],
        ["rehearse", "a", "--quiet-for", "nan"],
        ["rehearse", "a", "--devices", "0"],
        ["tune", "a", "-o", "x", "--budget", "0"],
        ["scale", "a", "--devices", "8,0"],
        ["scale", "a", "--measured", "8=0s"],
    ],
    ids=" ".join,
)
def test_the_command_line_refuses_it_too(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", [1, np.int64(8), np.float64(25.0), 50.5])
def test_numbers_of_numpy_are_numbers(value: Any) -> None:
    assert Network(network_gb_s=value).network_gb_s == value


LIBRARY = {
    "advise": Advise,
    "analyze": Analyze,
    "compare": Compare,
    "confirm": Confirm,
    "convert": Convert,
    "predict": Predict,
    "ranks": OrderOfRanks,
    "rehearse": Rehearse,
    "releases": Releases,
    "scale": Scale,
    "tune": Tune,
    "verify": Verify,
}
KINDS = {"int": Number, "float": (Number, Portion), "bool": Switch}


@pytest.mark.parametrize("request_type", LIBRARY.values(), ids=LIBRARY)
def test_every_number_and_switch_of_the_library_is_checked(
    request_type: type[Request],
) -> None:
    types = {name: str(found.type) for name, found in fields_dict(request_type).items()}
    for item in declared(request_type):
        kind = KINDS.get(types[item.name].removesuffix(" | None"))
        assert kind is None or isinstance(item.option.kind, kind), item.name


def test_every_answer_of_the_library_has_a_request() -> None:
    others = {"Answer", "UserError", "__version__", "profiled_steps", "step"}
    assert LIBRARY.keys() == set(pgle.__all__) - others


def test_every_number_of_a_command_has_a_range() -> None:
    group = LazyGroup()
    commands = [group.get_command(None, name) for name in FILES]  # type: ignore[arg-type]
    options = [option for command in commands if command for option in command.params]
    assert [
        f"{item.name}" for item in options if item.type.name in ("float", "integer")
    ] == []
