"""The library: what the commands answer, as values. `import pgle` has all of it; docs/library.md
explains it.

A command answers by its function here, which returns an `Answer`, and prints nothing unless it is
interrupted. Each raises `UserError` for what the user can mend: a bad input, an output that exists.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from attrs import evolve

from pgle.checks import check_switch
from pgle.errors import UserError, some
from pgle.files import as_path, write_files
from pgle.next import Commands
from pgle.report import text
from pgle.report.page import plain
from pgle.report.page.value import Page
from pgle.requests.function import answers, answers_on_steps, user_errors
from pgle.requests.given import StrPath, are_paths, paths
from pgle.requests.looks import Analyze, Confirm, OrderOfRanks
from pgle.requests.predictions import Advise, Predict, Rehearse, Releases, Scale, Tune
from pgle.requests.profiles import Convert, Verify
from pgle.requests.steps import Compare, Times

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from pgle.costs.profile.coverage import Coverage
    from pgle.run.advise import Advised
    from pgle.run.analyze import Analysis
    from pgle.run.compare import CompareRequest
    from pgle.run.convert import Conversion
    from pgle.run.predict import Predicted
    from pgle.run.ranks import Ranks
    from pgle.run.rehearse import Rehearsal
    from pgle.run.releases import ReleasesResult
    from pgle.run.scale import Scaling
    from pgle.run.tune import Tuning
    from pgle.steps.compare import Comparison
    from pgle.steps.series import Side
    from pgle.xla.log.verdict import LogVerdict
    from pgle.xla.vendors import Vendor

R = TypeVar("R")
Result = TypeVar("Result", covariant=True)
P = ParamSpec("P")
AnyRehearse = TypeVar("AnyRehearse", bound=Rehearse | Advise)


@dataclass(frozen=True, eq=False, repr=False)
class Answer(Generic[Result]):
    """What a command answers. A notebook shows its page, with the moving timeline; a terminal shows
    its text.
    """

    result: Result  # the values behind it
    page: Page  # what the command prints
    document: Mapping[
        str, Any
    ]  # what the command prints with ``--json``, by the schema of docs/schemas
    ok: bool  # whether the command's check is met, so that it exits with 0
    exit_code: int = 1  # that it exits with if the check is not met

    def __getitem__(self, key: str) -> Any:
        """A field of the JSON document: ``answer["step_us"]``."""
        return self.document[key]

    def to_json(self) -> str:
        """The JSON document as text."""
        return text.as_json(self.document["schema"], self.document)

    def save(self, path: StrPath, *, force: bool = False) -> None:
        """Write the page, by the end of the file's name: ``.html``, ``.md``; ``.json`` for the
        document; ``.trace.json`` or ``.json.gz`` for its timeline, which Perfetto opens.

        Raises:
            UserError: the name ends otherwise, the page has no timeline, or the file exists
                (without `force`).
        """
        from pgle.report.report import FORMS, form_of

        file = as_path(path)
        ending = form_of(file)
        check_switch("force", force)
        content = self.to_json() if ending == ".json" else FORMS[ending](self.page)
        write_files({file: content}, force=force)

    def __repr__(self) -> str:
        with redirect_stdout(StringIO()) as printed:
            plain.show(self.page)
        return printed.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        """The page in a frame of its own."""
        from pgle.report.page.html import frame

        return frame(self.page)


@answers(Convert)
def convert(request: Convert) -> Answer[Conversion]:
    """Turn traces into a cost profile, as `pgle convert`."""
    from pgle.report import conversions as report
    from pgle.report.next_steps import after_conversion
    from pgle.run.convert import convert, hlo_of

    with text.progress("reading traces") as advance:
        found = convert(request, progress=advance)
    following: Commands = ()
    if len(found.written) == 1:
        following = after_conversion(found.written[0].path, hlo_of(request))
    page = report.convert_page(found, following)
    return answer("convert", found, page, report.convert_document(found))


@answers(Verify)
def verify(request: Verify) -> Answer[Coverage]:
    """Hold a profile against an HLO module, as `pgle verify`."""
    from pgle.report import verify as report
    from pgle.report.next_steps import after_verification
    from pgle.run.coverage import verify
    from pgle.xla.log.verdict import Bounds

    name = str(request.profile)
    hlo = request.hlo
    bounds = Bounds(request.min_time_coverage, request.min_collectives)
    found = verify(request.profile, hlo, module=request.module)
    ok = found.is_ok(bounds)
    following = after_verification(request.profile, hlo) if ok and hlo else ()
    page = report.verify_page(name, found, bounds, following)
    return answer("verify", found, page, report.document(name, found, bounds), ok)


@answers(Confirm)
def confirm(request: Confirm) -> Answer[LogVerdict]:
    """Whether a run used the profile, by its XLA log, as `pgle confirm`."""
    from pgle.costs.profile.files import read_profile
    from pgle.report import confirm as report
    from pgle.report.next_steps import after_confirmation
    from pgle.run.confirm import ConfirmRequest, check_log, confirm
    from pgle.xla.log.verdict import Bounds, ProfileUse

    paths = request.log
    for path in paths:
        may_be_empty = request.schedule is not None or len(paths) > 1
        check_log(path, may_be_empty=may_be_empty)
    path, *more = paths
    given = None if request.profile is None else read_profile(request.profile)
    asked = ConfirmRequest(
        path,
        tuple(more),
        module=request.module,
        schedule=request.schedule,
        profile=given,
        release=request.jax,
        bounds=Bounds(request.min_time_coverage, request.min_collectives),
    )
    with text.progress("reading log") as advance:
        found = confirm(asked, progress=advance)
    name = some(map(str, paths), 2)
    page = report.confirm_page(name, found, after_confirmation(path, found))
    ok = found.main.verdict is ProfileUse.USED
    return answer("confirm", found, page, report.confirm_document(found), ok)


@answers(OrderOfRanks)
def ranks(request: OrderOfRanks) -> Answer[Ranks]:
    """Whether all ranks start their collectives in the same order, as `pgle ranks`."""
    from pgle.report import ranks as report
    from pgle.run.ranks import compare_ranks

    found = compare_ranks(request.paths)
    page = report.ranks_page(some(map(str, request.paths), 2), found)
    return answer("ranks", found, page, report.ranks_document(found), found.ok)


@answers(Compare)
def compare(request: Compare) -> Answer[Comparison]:
    """Compare the step times of two sides, as `pgle compare`."""
    from pgle.report import compare as report
    from pgle.report.next_steps import after_comparison
    from pgle.run.compare import judged, request_of, run_compare

    base, new = request.base, request.new
    following: Commands = ()
    if new is None or (are_paths(base) and are_paths(new)):
        sides = [
            tuple(map(str, paths(side)))  # type: ignore[arg-type]
            for side in (base, new)
            if side is not None
        ]
        if new is None:
            asked = request_of(request, *sides)
        else:
            asked = request_of(request, (), *sides)
        found, checks = run_compare(asked)
        following = after_comparison(found, checks)
    else:
        asked = request_of(request)
        one, two = (
            _side(label, times, name, asked)
            for label, times, name in zip(
                request.labels, (base, new), ("base", "new"), strict=True
            )
        )
        found, checks = judged(one, two, asked)
    ok = not any(check.failed for check in checks)
    page = report.comparison_page(found, checks, following)
    return answer("compare", found, page, report.document(found, checks), ok)


@answers(Predict)
def predict(request: Predict) -> Answer[Predicted]:
    """Predict what a step of a scheduled module takes, as `pgle predict`: no compiler, no GPU."""
    from pgle.report import predict as report
    from pgle.run.predict import predict_file

    found = predict_file(request)
    page = report.predict_page(found)
    return answer("predict", found, page, report.predict_document(found))


@answers(Analyze)
def analyze(request: Analyze) -> Answer[Analysis]:
    """Where the time of a step goes and what could be saved, as `pgle analyze`; its page is the one
    of `pgle report`.
    """
    from pgle.report import analyze as report
    from pgle.report.report import run_page
    from pgle.run.analyze import RunFacts

    found = read_analysis(request)
    page = run_page(RunFacts(request.inputs, analysis=found))
    return answer("analyze", found, page, report.document(found))


def read_analysis(request: Analyze) -> Analysis:
    """What `analyze` and `pgle analyze` answer, before it is a page."""
    from pgle.run.analyze import analyze, other_of, step_of

    with text.progress("reading traces") as advance:
        return analyze(step_of(request), other_of(request), progress=advance)


def _of_step(
    request: Callable[..., AnyRehearse],
    step: Callable[..., Any] | StrPath | Sequence[str],
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> AnyRehearse:
    """What is compiled; a function is lowered into a temporary folder, which stays."""
    from pgle.run.capture.capture import lowered_step
    from pgle.run.capture.captured import check_fits

    if not isinstance(step, str | os.PathLike | Sequence):
        asked = request((), **options)
        folder = Path(mkdtemp(prefix="pgle-step-"))
        module = lowered_step(step, args, folder, _vendor(asked.target))
        if asked.shape is not None:
            check_fits(module, asked.shape)
        return evolve(asked, step=(str(module),))
    return _of_words(request(step, **options), step, args)


def _of_words(
    asked: AnyRehearse, step: StrPath | Sequence[str], args: Sequence[Any]
) -> AnyRehearse:
    """What is asked of a path or of the words of a command. A text alone starts no program."""
    from pgle.run.rehearse_program import is_program

    if not asked.words:
        remedy = "give a function, a path or the words of a command"
        raise UserError("no step is given", remedy=remedy)
    (where, *_) = asked.words
    if args:
        raise UserError("takes no arguments: it is no function", where=where)
    if isinstance(step, str | os.PathLike) and is_program(asked.words):
        what = "is no module, no folder of dumps and no run directory"
        remedy = "name one; to start a program give a list of words"
        raise UserError(what, where=where, remedy=remedy)
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

    picture = write_page(report.folder_of(found), report.rehearse_page(found))
    document = {**report.rehearse_document(found), "picture": picture}
    page = report.rehearse_page(found, picture)
    code = found.request.exit_code or 1
    return answer("rehearse", found, page, document, found.good, exit_code=code)


@answers_on_steps(Releases, _of_step)
def releases(request: Releases) -> Answer[ReleasesResult]:
    """What other releases of jax make of a step, as `pgle rehearse --jax`."""
    from pgle.report import releases as report
    from pgle.run.releases import compare_releases

    consent = _yes if request.yes else text.agreed
    with text.phases() as on_phase:
        found = compare_releases(request, consent, on_phase)
    page = report.releases_page(found)
    document = report.releases_document(found)
    return answer("releases", found, page, document, found.good)


def _yes(words: str) -> bool:
    """Say what is done to somebody who agreed to it before."""
    text.say(words.replace("would make", "makes"))
    return True


@answers_on_steps(Tune, _of_step)
def tune(request: Tune) -> Answer[Tuning]:
    """Find the XLA flags that, with the profile, make a step fastest, as `pgle tune`."""
    from pgle.report import tune as report
    from pgle.report.schedules import write_page
    from pgle.run.rehearse_program import launch, prepared
    from pgle.run.tune import NAME, tune

    budget = request.budget
    with prepared(request, question=NAME) as (known, given):
        with report.searching(budget) as (on_trial, on_phase):
            found = tune(
                given,
                budget,
                where=request.executor,
                on_trial=on_trial,
                on_phase=on_phase,
            )
        found = replace(found, launch=launch(known))
        out = given.out
        path = write_page(out, report.tune_page(found, out), force=True)
    page = report.tune_page(found, out, path)
    document = report.document(found, out, path)
    return answer("tune", found, page, document, found.good)


def _of_advised(
    request: Callable[..., Advise],
    step: Callable[..., Any] | StrPath | Sequence[str],
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> Advise:
    """What is advised on; the words of a command are taken, too."""
    if callable(step):
        asked = _of_step(request, step, args, options)
        return evolve(asked, function=(step, tuple(args)))
    return _of_words(request(step, **options), step, args)


@answers_on_steps(Advise, _of_advised)
def advise(request: Advise) -> Answer[Advised]:
    """Try a program's alternatives, and rank what really helps, as `pgle advise`."""
    from pgle.report import advise as report
    from pgle.report.schedules import write_page
    from pgle.run.advise import advise

    with report.trying() as (on_attempt, on_phase):
        found = advise(request, on_phase, on_attempt)
    out = found.request.out
    path = write_page(out, report.advise_page(found), force=True)
    page = report.advise_page(found, path)
    return answer("advise", found, page, report.document(found, path))


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
            vendor = _vendor(request.target)
            files, unfit = lowered_steps(
                request.build, request.devices, Path(place), vendor
            )
            request = evolve(request, build=tuple(map(str, files)), devices=())
        request = evolve(request, output=out)
        with report.making() as on_row:
            found = scale(request, on_row, unfit)
        path = write_page(out, report.scale_page(found), report.PAGE, force=True)
        page = report.scale_page(found, path)
        document = report.document(found, path)
    return answer("scale", found, page, document, found.answer.good)


@user_errors()
def folder(path: StrPath = ".") -> Answer[Any]:
    """The files of a folder, and the next thing to do with them.

    Args:
        path: the folder.
    """
    from pgle.report.start import folder_page
    from pgle.run.inputs.next_command import contents_of

    found = contents_of(Path(path))
    return Answer(found, folder_page(found), {}, True)


@user_errors()
def flags_explain(name: str) -> Answer[Any]:
    """One setting of XLA, NCCL, CUDA or JAX: meaning, values, defaults by release, what others
    measured.

    Args:
        name: of the flag or variable.
    """
    from pgle.report import flags as report
    from pgle.xla.flags.catalogue import find

    found = find(name)
    return answer(
        "flags",
        found,
        report.setting_page(found),
        {"setting": report.setting_json(found)},
    )


def answer(
    command: str,
    result: R,
    page: Page,
    document: Mapping[str, Any] | DataclassInstance,
    ok: bool = True,
    version: int = 1,
    exit_code: int = 1,
) -> Answer[R]:
    """The answer of a command, whose name is in the document's schema."""
    named = {"schema": f"pgle.{command}/{version}", **text.plain(document)}
    return Answer(result, page, named, ok, exit_code)


def _vendor(target: str | None) -> Vendor:
    """The vendor of a named GPU; the default's if none is named."""
    from pgle.run.rehearse_program import DEFAULT_TARGET
    from pgle.xla.targets import load_target

    return load_target(target or DEFAULT_TARGET).vendor


def _side(label: str, given: Times, name: str, asked: CompareRequest) -> Side:
    """A side of a comparison: runs on disk, an array of step times, or an array for each run."""
    from pgle.run.inputs.step_times import read_side
    from pgle.steps.series import Side, Step, make_series, steady, unfit

    label, rules = label or name, asked.rules
    if are_paths(given):
        files = [str(path) for path in paths(given)]  # type: ignore[arg-type]
        return read_side(label, files, rules=rules, pattern=asked.pattern)
    items: list[Any] = list(given)  # type: ignore[arg-type]
    found = []
    for at, run in enumerate(
        items if items and isinstance(items[0], Iterable) else [items]
    ):
        steps = [Step(number, float(value)) for number, value in enumerate(run)]
        for step in steps:
            if why := unfit(step.step_time_s):
                what = f"step {step.step}: {step.step_time_s:g} s {why}"
                raise UserError(what, where=f"{label}[{at}]", remedy="give seconds")
        found.append(steady(make_series(f"{label}[{at}]", "array", steps), rules))
    return Side(label, tuple(found))
