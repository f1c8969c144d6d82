"""The library: what the commands answer, as values. `import pgle` has all of it; docs/library.md
explains it.

A command answers by its function here, which returns an `Answer`, and prints nothing unless it is
interrupted. Each raises `UserError` for what the user can mend: a bad input, an output that exists.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from inspect import signature
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeAlias, TypeVar

from attrs import evolve

from pgle.checks import check
from pgle.errors import UserError, some
from pgle.files import AnyPath, as_path, write_files
from pgle.next import Commands
from pgle.report import text
from pgle.report.page import plain
from pgle.report.page.value import Page
from pgle.requests.function import answers, answers_on_steps
from pgle.requests.given import Paths, StrPath
from pgle.requests.predictions import Predict, Rehearse, Scale, Tune

if TYPE_CHECKING:
    import numpy.typing as npt

    from pgle.costs.profile.coverage import Coverage
    from pgle.run.analyze import Analysis
    from pgle.run.convert import Conversion
    from pgle.run.predict import Predicted
    from pgle.run.ranks import Ranks
    from pgle.run.rehearse import Rehearsal
    from pgle.run.scale import Scaling
    from pgle.run.tune import Tuning
    from pgle.steps.compare import Comparison
    from pgle.steps.series import Rules, Side
    from pgle.xla.log.verdict import LogVerdict
    from pgle.xla.vendors import Vendor

R = TypeVar("R")
Result = TypeVar("Result", covariant=True)
P = ParamSpec("P")
AnyRehearse = TypeVar("AnyRehearse", bound=Rehearse)
Times: TypeAlias = "Paths | npt.ArrayLike | Sequence[npt.ArrayLike]"
"""Paths of runs; or an array of step times in seconds; or several such arrays, one for each run."""


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
        check({"force": force})
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


def _with_user_errors(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose arguments are checked by `pgle.checks`, and whose errors about files and
    patterns are `UserError`, as those of the command line are one line.
    """
    parameters = signature(function)

    @wraps(function)
    def answered(*args: P.args, **kwargs: P.kwargs) -> R:
        check(parameters.bind(*args, **kwargs).arguments)
        try:
            return function(*args, **kwargs)
        except re.error as error:
            raise UserError(
                f"{str(error.pattern)!r} is not a regular expression ({error})"
            ) from None
        except OSError as error:
            if not error.filename:
                raise
            raise UserError(
                str(error.strerror), where=str(error.filename), remedy="check the path"
            ) from None

    return answered


@_with_user_errors
def convert(
    inputs: Paths,
    output: StrPath | None = None,
    *,
    hlo: Paths = (),
    module: str = "auto",
    stat: str = "median",
    collective_stat: str = "median",
    complete: str | None = None,
    fingerprint_names: bool = False,
    all_executions: bool = False,
    force: bool = False,
) -> Answer[Conversion]:
    """Turn traces into a cost profile, as `pgle convert`.

    Args:
        inputs: traces or a run directory; several are ranks of one job.
        output: ``.pbtxt``, ``.pb`` or a folder; None: into the run directory.
        hlo: HLO dumps of the profiled run.
        module: which modules: ``auto``, ``all`` or a regular expression.
        stat: statistic of compute: ``median``, ``mean``, ``min``, ``max``, ``pNN``.
        collective_stat: the same for collectives.
        complete: fill gaps with estimates for this GPU.
        fingerprint_names: write ``fingerprint::name``, so that other modules ignore the costs.
        all_executions: keep warm-up and truncated executions.
        force: overwrite.
    """
    from pgle.costs.measure.measured import AggregateOptions
    from pgle.costs.measure.samples import parse_statistic
    from pgle.report import profiles as report
    from pgle.report.next_steps import after_conversion
    from pgle.run.convert import ConvertRequest, convert, default_hlo, default_output

    given = _paths(inputs, 1)
    options = AggregateOptions(
        parse_statistic(stat), parse_statistic(collective_stat), all_executions
    )
    request = ConvertRequest(
        given,
        _path(output) or default_output(given),
        _paths(hlo) or default_hlo(given),
        module,
        options,
        fingerprint_names,
        complete,
        force,
    )
    with text.progress("reading traces") as advance:
        found = convert(request, progress=advance)
    following = (
        after_conversion(found.written[0].path, request.hlo)
        if len(found.written) == 1
        else ()
    )
    return answer(
        "convert",
        found,
        report.convert_page(found, following),
        report.convert_document(found),
    )


@_with_user_errors
def verify(
    profile: StrPath,
    hlo: Paths = (),
    *,
    module: str = "",
    min_time_coverage: float = 0.95,
    min_collectives: float = 0.99,
) -> Answer[Coverage]:
    """Hold a profile against an HLO module, as `pgle verify`.

    Args:
        profile: the profile.
        hlo: dump files or folders, with LHS's schedule dumps.
        module: regular expression searched in module names; empty: all.
        min_time_coverage: share of the main module's time that the profile must cover, 0 to 1.
        min_collectives: share of the step that is left without collectives that have no cost, 0 to
            1.
    """
    from pgle.report import verify as report
    from pgle.report.next_steps import after_verification
    from pgle.run.coverage import verify
    from pgle.xla.log.verdict import Bounds

    file, dumps, bounds = (
        _file(profile),
        _paths(hlo),
        Bounds(min_time_coverage, min_collectives),
    )
    found = verify(file, dumps, module=module)
    ok = found.is_ok(bounds)
    following = after_verification(file, dumps) if ok and dumps else ()
    page = report.verify_page(str(file), found, bounds, following)
    return answer("verify", found, page, report.document(str(file), found, bounds), ok)


@_with_user_errors
def confirm(
    log: Paths,
    *,
    module: str | None = None,
    schedule: StrPath | None = None,
    profile: StrPath | None = None,
    jax: str | None = None,
    min_time_coverage: float = 0.95,
    min_collectives: float = 0.99,
) -> Answer[LogVerdict]:
    """Whether a run used the profile, by its XLA log, as `pgle confirm`.

    Args:
        log: stdout and stderr of the run; one file for each rank, or a folder of them; or a run
            directory.
        module: regular expression for the main module; None: the weightiest.
        schedule: schedule dump of the same run.
        profile: of the run; None: the one that the log names.
        jax: version of the jax that wrote the log; None: guessed.
        min_time_coverage: as of `verify`; below it a profile counts as partly used.
        min_collectives: the same.
    """
    from pgle.costs.profile.files import read_profile
    from pgle.report import verify as report
    from pgle.report.next_steps import after_confirmation
    from pgle.run.confirm import ConfirmRequest, check_log, confirm
    from pgle.xla.log.verdict import Bounds, ProfileUse

    paths = _paths(log, 1)
    for path in paths:
        check_log(path, may_be_empty=schedule is not None or len(paths) > 1)
    path, *more = paths
    given = None if profile is None else read_profile(_path(profile))
    bounds = Bounds(min_time_coverage, min_collectives)
    request = ConfirmRequest(
        path,
        tuple(more),
        module=module,
        schedule=_path(schedule),
        profile=given,
        release=jax,
        bounds=bounds,
    )
    with text.progress("reading log") as advance:
        found = confirm(request, progress=advance)
    name = some(map(str, paths), 2)
    page = report.confirm_page(name, found, after_confirmation(path, found))
    return answer(
        "confirm",
        found,
        page,
        report.confirm_document(found),
        found.main.verdict is ProfileUse.USED,
    )


@_with_user_errors
def ranks(paths: Paths) -> Answer[Ranks]:
    """Whether all ranks start their collectives in the same order, as `pgle ranks`.

    Args:
        paths: dumps or logs of each rank, a folder of them, or a run directory.
    """
    from pgle.report import ranks as report
    from pgle.run.ranks import compare_ranks

    given = _paths(paths, 1)
    found = compare_ranks(given)
    page = report.ranks_page(some(map(str, given), 2), found)
    return answer("ranks", found, page, report.ranks_document(found), found.ok)


@_with_user_errors
def compare(
    base: Times,
    new: Times | None = None,
    *,
    labels: tuple[str, str] = ("", ""),
    paired: bool = False,
    fail_slower: float | None = None,
    require_faster: bool = False,
    confidence: float = 0.95,
    same_within: float = 0.005,
    warmup: int | None = None,
    launch_spread: float | None = None,
) -> Answer[Comparison]:
    """Compare the step times of two sides, as `pgle compare`.

    Args:
        base: paths of runs, or step times in seconds.
        new: the same; None: `base` is a folder that holds both sides.
        labels: names of the sides in the answer; empty: by their paths.
        paired: run i of `base` belongs to run i of `new`.
        fail_slower: the answer is not ok if `new` is shown to be slower by more than this share:
            0.02.
        require_faster: the answer is not ok unless `new` is faster.
        confidence: of the intervals.
        same_within: what counts as the same, as a share.
        warmup: steps to leave out at the start; None: found.
        launch_spread: standard deviation between launches as a share, where each side has one run:
            0.003; None: assumed.
    """
    from pgle.report import compare as report
    from pgle.report.next_steps import after_comparison
    from pgle.run.compare import CompareRequest, run_compare
    from pgle.steps.compare import Limits, compare, gate
    from pgle.steps.estimate import Assumptions, given_spread
    from pgle.steps.series import Rules

    rules, limits = (
        Rules(warmup=warmup),
        Limits(fail_slower=fail_slower, require_faster=require_faster),
    )
    assumptions = Assumptions(
        confidence,
        same_within,
        launch_spread=given_spread(launch_spread),
        paired=paired,
    )
    following: Commands = ()
    if new is None or (_are_paths(base) and _are_paths(new)):
        sides = [
            tuple(map(str, _paths(side))) for side in (base, new) if side is not None
        ]
        words, (one_side, other) = (sides[0], ((), ())) if new is None else ((), sides)
        request = CompareRequest(
            words, one_side, other, rules, assumptions, limits, labels=labels
        )
        found, checks = run_compare(request)
        following = after_comparison(found, checks)
    else:
        one, two = (
            _side(*side, rules)
            for side in zip(labels, (base, new), ("base", "new"), strict=True)
        )
        found = compare(one, two, assumptions)
        checks = gate(found, limits)
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


@_with_user_errors
def analyze(
    inputs: Paths,
    *,
    hlo: Paths = (),
    target: str | None = None,
    profile: StrPath | None = None,
    against: Paths = (),
    against_hlo: Paths = (),
) -> Answer[Analysis]:
    """Where the time of a step goes and what could be saved, as `pgle analyze`; its page is the one
    of `pgle report`.

    Args:
        inputs: traces (several are ranks of one job), a run directory or a stage of it, a
            rehearsal, scheduled HLO.
        hlo: HLO dumps of the traced run.
        target: GPU for expected times; None: as the HLO says.
        profile: what the scheduler was given; None: from the run directory.
        against: another run of the program, from before; then the answer says what changed.
        against_hlo: HLO dumps of that run.
    """
    from pgle.report import analyze as report
    from pgle.report.report import run_page
    from pgle.run.analyze import RunFacts

    found = read_analysis(inputs, hlo, target, profile, against, against_hlo)
    page = run_page(RunFacts(_paths(inputs), analysis=found))
    return answer("analyze", found, page, report.document(found))


def read_analysis(
    inputs: Paths,
    hlo: Paths,
    target: str | None,
    profile: StrPath | None,
    against: Paths,
    against_hlo: Paths,
) -> Analysis:
    """What `analyze` and `pgle analyze` answer, before it is a page."""
    from pgle.run.analyze import StepInput, analyze

    side = StepInput(_paths(inputs, 1), _paths(hlo), target, _path(profile))
    other = (
        StepInput(_paths(against), _paths(against_hlo), target)
        if _paths(against)
        else None
    )
    with text.progress("reading traces") as advance:
        return analyze(side, other, progress=advance)


def _of_step(
    request: Callable[..., AnyRehearse],
    step: Callable[..., Any] | StrPath | Sequence[str],
    args: Sequence[Any],
    options: Mapping[str, Any],
) -> AnyRehearse:
    """What is compiled; a function is lowered into a temporary folder, which stays."""
    from pgle.run.capture.capture import lowered_step
    from pgle.run.capture.captured import check_fits
    from pgle.run.rehearse_program import is_program

    if not isinstance(step, str | os.PathLike | Sequence):
        asked = request((), **options)
        folder = Path(mkdtemp(prefix="pgle-step-"))
        module = lowered_step(step, args, folder, _vendor(asked.target))
        if asked.shape is not None:
            check_fits(module, asked.shape)
        return evolve(asked, step=(str(module),))
    asked = request(step, **options)
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
        Thread(target=import_module, args=("pgle.report.predict",), daemon=True).start()
        found = rehearse(request, on_phase)
    from pgle.report import predict as report

    picture = report.write_page(report.folder_of(found), report.rehearse_page(found))
    document = {**report.rehearse_document(found), "picture": picture}
    page = report.rehearse_page(found, picture)
    code = found.request.exit_code or 1
    return answer("rehearse", found, page, document, found.good, exit_code=code)


@answers_on_steps(Tune, _of_step)
def tune(request: Tune) -> Answer[Tuning]:
    """Find the XLA flags that, with the profile, make a step fastest, as `pgle tune`."""
    from pgle.report import tune as report
    from pgle.report.predict import write_page
    from pgle.run.rehearse_program import launch, prepared
    from pgle.run.tune import NAME, tune

    budget = request.budget
    with prepared(request, question=NAME) as (known, given):
        with report.searching(budget) as (on_trial, on_phase):
            found = tune(given, budget, on_trial=on_trial, on_phase=on_phase)
        found = replace(found, launch=launch(known))
        out = given.out
        path = write_page(out, report.tune_page(found, out), force=True)
    page = report.tune_page(found, out, path)
    document = report.document(found, out, path)
    return answer("tune", found, page, document, found.good)


@answers(Scale)
def scale(request: Scale) -> Answer[Scaling]:
    """Predict a step at sizes that you do not have, as `pgle scale`."""
    from pgle.report import scale as report
    from pgle.report.predict import write_page
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
        with report.making(len(request.devices)) as on_row:
            found = scale(request, on_row, unfit)
        path = write_page(out, report.scale_page(found), report.PAGE, force=True)
        page = report.scale_page(found, path)
        document = report.document(found, path)
    return answer("scale", found, page, document, found.answer.good)


@_with_user_errors
def folder(path: StrPath = ".") -> Answer[Any]:
    """The files of a folder, and the next thing to do with them.

    Args:
        path: the folder.
    """
    from pgle.report.start import folder_page
    from pgle.run.inputs.next_command import contents_of

    found = contents_of(Path(path))
    return Answer(found, folder_page(found), {}, True)


@_with_user_errors
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
    document: Mapping[str, Any],
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


def _are_paths(given: object) -> bool:
    items = given if isinstance(given, Sequence) else [given]
    return all(isinstance(item, str | os.PathLike) for item in items)


def _paths(given: Any, least: int = 0) -> tuple[AnyPath, ...]:
    """Paths of one path, several or none."""
    remedy = "give a path or a list of paths"
    if not _are_paths(given):
        raise UserError(f"a path is needed, not {type(given).__name__}", remedy=remedy)
    found = tuple(
        map(as_path, [given] if isinstance(given, str | os.PathLike) else given)
    )
    if len(found) < least:
        raise UserError("no input is given", remedy=remedy)
    return found


def _file(given: Any) -> AnyPath:
    if len(found := _paths(given, 1)) > 1:
        raise UserError(f"{len(found)} paths are given", remedy="give one")
    return found[0]


def _path(given: StrPath | None) -> AnyPath | None:
    return None if given is None else _file(given)


def _side(label: str, given: Times, name: str, rules: Rules) -> Side:
    """A side of a comparison: runs on disk, an array of step times, or an array for each run."""
    from pgle.run.inputs.step_times import read_side
    from pgle.steps.series import Side, Step, make_series, steady, unfit

    label = label or name
    if _are_paths(given):
        return read_side(label, [str(path) for path in _paths(given)], rules=rules)
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
