"""An option is declared once, as a field of a request; all else comes from that."""

from __future__ import annotations

import inspect

import click
import pytest
from attrs import field, frozen

from pgle.cli.parameters import parameters
from pgle.errors import UserError
from pgle.requests.function import answers
from pgle.requests.option import declared, option
from pgle.requests.predictions import Predict, Rehearse, Scale, Tune
from pgle.requests.shared import Network
from pgle.requests.stages import Stage
from pgle.run.rehearse_program import (
    Understood,
    asked_of_search,
    measure_line,
    tune_line,
)
from pgle.xla.targets import load_target


@frozen(slots=False)
class Cooled(Rehearse):
    """A rehearsal with an option that the real one does not have."""

    coolant: str | None = field(
        default=None,
        kw_only=True,
        metadata=option(
            "--coolant",
            "What cools the GPU.",
            metavar="NAME",
            meaning="what cools the GPU; None: air.",
        ),
    )


WET = Cooled("step.mlir", coolant="water")


def test_a_new_field_is_an_option_of_the_command() -> None:
    command = click.Command("rehearse", params=list(parameters(Cooled)))
    context = command.make_context("rehearse", ["--coolant", "water", "step.mlir"])
    assert context.params["coolant"] == "water"
    assert "--coolant NAME" in command.get_help(context)


def test_a_new_field_is_a_parameter_of_the_library_with_its_meaning() -> None:
    @answers(Cooled)
    def rehearse(request: Cooled) -> str | None:
        """Compile a step."""
        return request.coolant

    assert rehearse("step.mlir", coolant="water") == "water"
    parameter = inspect.signature(rehearse).parameters["coolant"]
    assert (parameter.annotation, parameter.default) == ("str | None", None)
    assert "coolant: what cools the GPU; None: air." in str(rehearse.__doc__)


def test_a_new_field_is_recorded_in_the_question_of_a_search() -> None:
    known = asked_of_search(WET, "", load_target("h100"))
    assert known["coolant"] == "water"


def test_a_new_field_is_in_the_next_command_that_takes_it() -> None:
    assert WET.next_words(Cooled) == ["--coolant", "water"]
    assert WET.next_words(Tune) == []


def test_the_next_command_repeats_what_was_given_and_no_default() -> None:
    given = Rehearse(
        "step.mlir", topology="2x1x8", network_gb_s=50, module="a|b", quiet_s=3
    )
    assert given.next_words(Tune) == [
        *("--topology", "2x1x8"),
        *("--network", "50"),
        *("--module", "a|b"),
    ]


def test_the_program_of_a_rehearsal_is_measured_without_the_options_of_its_compiler(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(str(tmp_path))
    words = ("python", "train.py")
    asked = Understood(Rehearse(words, target="h100", network_gb_s=50))
    assert "--network" not in str(measure_line(asked))
    assert "--network 50" in str(tune_line(asked))


@pytest.mark.parametrize("request_type", [Predict, Rehearse, Tune, Scale, Stage])
def test_every_option_is_explained_on_one_line(request_type: type[Network]) -> None:
    for item in declared(request_type):
        text = item.option.help or item.option.meaning
        assert text, item.name
        assert "\n" not in text, item.name


def test_a_field_that_is_declared_anew_keeps_its_place() -> None:
    names = [item.name for item in declared(Tune)]
    assert names[:4] == ["profile", "target", "devices", "topology"]
    assert names[-4:] == ["words", "output", "executor", "budget"]


def test_one_host_is_asked_for_by_its_devices() -> None:
    given = Rehearse("step.mlir", topology="1x1x4")
    assert given.of_shape(given.shape).next_words(Tune) == ["--devices", "4"]


@pytest.mark.parametrize(
    "wrong", [{"network_gb_s": -1.0}, {"devices_per_host": 0}, {"module": "("}]
)
def test_a_value_is_checked_when_a_request_is_made(wrong: dict[str, object]) -> None:
    (name,) = wrong
    with pytest.raises(UserError, match=f"^{name}: "):
        Predict("dump", **wrong)  # type: ignore[arg-type]


def test_the_older_name_of_an_option_works_and_help_leaves_it_out() -> None:
    command = click.Command("rehearse", params=list(parameters(Rehearse)))
    context = command.make_context("rehearse", ["--choose", "a|b", "step.mlir"])
    assert context.params["module"] == "a|b"
    assert "--choose" not in command.get_help(context)
