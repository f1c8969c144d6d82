"""The library's predictions: predict, rehearse, releases, tune, advise and scale."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import evolve

from pgle.api.answer import Answer, answer
from pgle.errors import UserError
from pgle.report import text
from pgle.requests.function import answers, answers_on_steps
from pgle.requests.given import StrPath
from pgle.requests.predictions import Advise, Predict, Rehearse, Releases, Scale, Tune

if TYPE_CHECKING:
    from pgle.run.advise import Advised
    from pgle.run.predict import Predicted
    from pgle.run.rehearse import Rehearsal
    from pgle.run.releases import ReleasesResult
    from pgle.run.scale import Scaling
    from pgle.run.tune import Tuning
    from pgle.xla.targets import Target

AnyRehearse = TypeVar("AnyRehearse", bound=Rehearse | Advise)


@answers(Predict)
def predict(request: Predict) -> Answer[Predicted]:
    """Predict what a step of a scheduled module takes, as `pgle predict`: no compiler, no GPU."""
    from pgle.report import predict as report
    from pgle.run.predict import predict_file

    found = predict_file(request)
    if found.run_around is not None:
        # the dump of a module needs no capture
        from pgle.run.kept_trials import trials_of_run

        found = replace(found, trials=trials_of_run(found.run_around))
    following = report.advice(found)
    page = report.predict_page(found, following)
    document = report.predict_document(found)
    return answer("predict", found, page, document)


def _of_step(
    request: Callable[..., AnyRehearse],
    step: Callable[..., Any] | StrPath | Sequence[str],
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> AnyRehearse:
    """Return what to compile. A function is lowered into a temporary folder, which is not
    deleted.
    """
    from pgle.run.capture.capture import lowered_step
    from pgle.run.capture.captured import check_fits

    if not isinstance(step, str | os.PathLike | Sequence):
        asked = request((), **options)
        folder = Path(mkdtemp(prefix="pgle-step-"))
        module = lowered_step(step, args, folder, _target(asked.target))
        if asked.shape is not None:
            check_fits(module, asked.shape)
        return evolve(asked, step=(str(module),))
    return _of_words(request(step, **options), step, args)


def _of_words(
    asked: AnyRehearse, step: StrPath | Sequence[str], args: Sequence[Any]
) -> AnyRehearse:
    """Turn a path, or the words of a command, into a request. A single text never starts a
    program.
    """
    from pgle.run.rehearse_program import is_program

    if not asked.words:
        remedy = "give a function, a path or the words of a command"
        raise UserError("no step is given", remedy=remedy)
    (where, *_) = asked.words
    if args:
        raise UserError("takes no arguments: it is no function", where=where)
    if isinstance(step, str | os.PathLike) and is_program(asked.words):
        remedy = "name one; to start a program give a list of words"
        raise UserError(
            "is no module, no folder of dumps and no run directory",
            where=where,
            remedy=remedy,
        )
    return asked


@answers_on_steps(Rehearse, _of_step)
def rehearse(request: Rehearse) -> Answer[Rehearsal]:
    """Compile a step for GPUs that you do not have, with and without a profile, as
    `pgle rehearse`.
    """
    from pgle.run.rehearse import rehearse

    with text.phases() as on_phase:
        # Pages take half a second to import. The compiler works meanwhile.
        Thread(
            target=import_module, args=("pgle.report.rehearse",), daemon=True
        ).start()
        found = rehearse(request, on_phase)
    from pgle.report import rehearse as report
    from pgle.report.schedules import write_page

    following = report.advice(found)
    page = report.rehearse_page(found, following)
    picture = write_page(report.folder_of(found), page)
    document = report.rehearse_document(found, picture)
    page = report.rehearse_page(found, following, picture)
    code = found.request.exit_code or 1
    return answer("rehearse", found, page, document, found.good, exit_code=code)


@answers_on_steps(Releases, _of_step)
def releases(request: Releases) -> Answer[ReleasesResult]:
    """Compare a step compiled by other releases of jax, as `pgle rehearse --jax`."""
    from pgle.report import releases as report
    from pgle.run.releases import compare_releases

    consent = _yes if request.yes else text.agreed
    with text.phases() as on_phase:
        found = compare_releases(request, consent, on_phase)
    page = report.releases_page(found)
    document = report.releases_document(found)
    return answer("releases", found, page, document, found.good)


def _yes(words: str) -> bool:
    """Print what is about to be done; the caller has already agreed."""
    text.say(words.replace("would make", "makes"))
    return True


@answers_on_steps(Tune, _of_step)
def tune(request: Tune) -> Answer[Tuning]:
    """Find the XLA flags that, with the profile, make a step fastest, as `pgle tune`."""
    from pgle.report import tune as report
    from pgle.report.schedules import write_page
    from pgle.run.process.workers import check_place
    from pgle.run.rehearse_program import (
        advise_line,
        launch_of_program,
        measure_line,
        prepared,
    )
    from pgle.run.tune import NAME, tune

    check_place(request.executor)
    with prepared(request, question=NAME) as (command, given):
        with report.searching(request.budget) as (on_trial, on_phase):
            found = tune(
                given,
                request.budget,
                where=request.executor,
                on_trial=on_trial,
                on_phase=on_phase,
            )
        launch = launch_of_program(command)
        found = replace(
            found,
            launch=launch,
            measure=measure_line(command),
            advise=advise_line(command),
            run=launch.run if command.is_as_it_ran else None,
        )
        following = report.commands(found, given.out)
        page = report.tune_page(found, following)
        path = write_page(given.out, page, force=True)
    page = report.tune_page(found, following, path)
    document = report.document(found, path)
    return answer("tune", found, page, document, found.good)


def _of_advised(
    request: Callable[..., Advise],
    step: Callable[..., Any] | StrPath | Sequence[str],
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> Advise:
    """Turn a path, the words of a command, or a step into a request of `advise`."""
    if callable(step):
        asked = _of_step(request, step, args, options)
        return evolve(asked, function=(step, tuple(args)))
    return _of_words(request(step, **options), step, args)


@answers_on_steps(Advise, _of_advised)
def advise(request: Advise) -> Answer[Advised]:
    """Try a program's alternatives, and rank those that make the step shorter, as `pgle advise`."""
    from pgle.report import advise as report
    from pgle.report.schedules import write_page
    from pgle.run.advise import advise
    from pgle.run.process.endings import noted_signals

    with noted_signals() as ending:
        with report.trying() as (on_attempt, on_phase):
            found = advise(request, on_phase, on_attempt, ending)
        out = found.request.out
        following = report.commands(found)
        path = write_page(out, report.advise_page(found, following), force=True)
        page = report.advise_page(found, following, path)
        document = report.document(found, path)
        code = found.exit_code
        return answer("advise", found, page, document, not code, exit_code=code)


@answers(Scale)
def scale(request: Scale) -> Answer[Scaling]:
    """Predict a step at sizes that you do not have, as `pgle scale`."""
    from pgle.report import scale as report
    from pgle.report.schedules import write_page
    from pgle.run.capture.capture import lowered_steps
    from pgle.run.directory.directory import opened
    from pgle.run.scale import NAME, scale

    folder = None if request.output is None else str(request.output)
    unfit: Mapping[int, str] = {}
    with TemporaryDirectory(prefix="pgle-steps-") as place, opened(folder, NAME) as out:
        if callable(request.build):
            target = _target(request.target)
            files, unfit = lowered_steps(
                request.build, request.devices, Path(place), target
            )
            request = evolve(request, build=tuple(map(str, files)), devices=())
        request = evolve(request, output=out)
        with report.making() as on_row:
            found = scale(request, on_row, unfit)
        path = write_page(out, report.scale_page(found), report.PAGE, force=True)
        page = report.scale_page(found, path)
        document = report.document(found, path)
    return answer("scale", found, page, document, found.answer.good)


def _target(name: str | None) -> Target:
    """Return the GPU of this name; without a name the default."""
    from pgle.run.rehearse_program import DEFAULT_TARGET
    from pgle.xla.targets import load_target

    return load_target(name or DEFAULT_TARGET)
