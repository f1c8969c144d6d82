"""``pytest --pgle``: tests that compile a step for GPUs that you do not have, and compare it with a
baseline.

The fixture `pgle_rehearse` takes a function and its arguments, or the words of a command, and
returns a `RehearsedStep`. Without ``--pgle`` its tests are skipped, and nothing but this file is
imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

if TYPE_CHECKING:
    from pgle.account.snapshot import Change, CollectiveFacts, Snapshot
    from pgle.api.answer import Answer
    from pgle.files import Json
    from pgle.run.rehearse import Rehearsal

FOLDER = "pgle_baselines"  # next to the test's file

_USED = pytest.StashKey[dict[Path, str]]()  # each baseline, and the test that uses it
_PROPERTY = "pgle"  # of a test report: the steps that the test compared


@dataclass(frozen=True, repr=False)
class RehearsedStep:
    """A step as XLA compiles it for the GPUs, with the flags that the program uses."""

    answer: Answer[Rehearsal]  # the answer of `pgle rehearse`
    snapshot: Snapshot  # the facts that the baseline keeps

    def __repr__(self) -> str:
        return f"<{_summary(self.snapshot)}>"

    @property
    def step_us(self) -> float:
        """The predicted step, in microseconds."""
        return self.snapshot.step_us

    @property
    def exposed_us(self) -> float:
        """Communication that nothing hides, in microseconds of a step."""
        from pgle.account.snapshot import exposed_us

        return exposed_us(self.snapshot)

    @property
    def exposed_share(self) -> float:
        """Exposed communication as a share of the step."""
        return self.exposed_us / self.step_us if self.step_us else 0.0

    @property
    def memory_bytes(self) -> int | None:
        """Bytes that a device needs, as XLA reports them."""
        return self.snapshot.memory_bytes

    @property
    def collectives(self) -> dict[str, CollectiveFacts]:
        """Number and bytes of collectives, by texts such as ``all-gather over 8``."""
        return self.snapshot.collectives

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The collectives of one step, in the order in which a rank starts them."""
        from pgle.account.snapshot import started

        return tuple(started(self.answer.result.now.module))


@dataclass(frozen=True)
class Compared:
    """A step compared with its baseline, as plain values that a worker of pytest-xdist can send."""

    test: str
    path: str  # path of the baseline
    summary: str
    is_new: bool  # whether there was no baseline
    changes: tuple[Change, ...] = ()

    @classmethod
    def from_property(cls, value: Json) -> Compared:
        """The inverse of `dataclasses.asdict`."""
        from pgle.account.snapshot import Change

        changes = tuple(Change(**item) for item in value["changes"])
        return cls(**{**value, "changes": changes})


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this plugin."""
    group = parser.getgroup("pgle", "steps compiled for GPUs that are not there")
    group.addoption(
        "--pgle", action="store_true", help="Run tests that use pgle_rehearse."
    )
    group.addoption(
        "--pgle-update", action="store_true", help="Write the baselines anew."
    )
    group.addoption(
        "--pgle-baselines",
        metavar="DIR",
        help=f"Folder of all baselines.  [default: {FOLDER} next to each file]",
    )
    group.addoption(
        "--pgle-markdown",
        metavar="FILE",
        help="Write what changed as Markdown for a comment on a pull request, and let it pass.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse options that cannot work, and set up the collection of compared steps."""
    is_on = config.getoption("--pgle")
    for option in ("--pgle-markdown", "--pgle-update"):
        if config.getoption(option) and not is_on:
            raise pytest.UsageError(f"{option} compiles no step without --pgle: add it")
    file = config.getoption("--pgle-markdown")
    if file and Path(file).is_dir():
        raise pytest.UsageError(f"--pgle-markdown {file} is a folder: name a file")
    if file and not Path(file).parent.is_dir():
        folder = Path(file).parent
        raise pytest.UsageError(
            f"--pgle-markdown {file}: no folder {folder}: mkdir -p {folder}"
        )
    if is_on and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(config), "pgle-report")


@pytest.fixture
def pgle_rehearse(request: pytest.FixtureRequest) -> Callable[..., RehearsedStep]:
    """Compile a step, and compare it with the test's baseline, if there is one.

    ``pgle_rehearse(step, *args, devices=8, target="h100")``; other options are those of
    `pgle.rehearse`. Use ``name`` to distinguish several steps of one test.
    """
    config = request.config
    if not config.getoption("--pgle"):
        pytest.skip("compiles for GPUs: pytest --pgle")
    #: baselines of this run of the test; a rerun may use them again
    own: set[Path] = set()

    def rehearse(
        step: Callable[..., Any] | Sequence[str],
        *args: Any,
        name: str = "",
        **options: Any,
    ) -> RehearsedStep:
        path = _baseline_path(request.node, config.getoption("--pgle-baselines"), name)
        test = config.stash.setdefault(_USED, {}).setdefault(path, request.node.nodeid)
        if path in own or test != request.node.nodeid:
            shown = _shown(path, config)
            pytest.fail(_shared(str(shown), test), pytrace=False)
        own.add(path)
        found = _rehearsed(step, args, options)
        compared = _compared(request.node.nodeid, found.snapshot, path)
        request.node.user_properties.append((_PROPERTY, asdict(compared)))
        if config.getoption("--pgle-update"):
            _write(path, found.snapshot)
        elif compared.changes and not config.getoption("--pgle-markdown"):
            pytest.fail(_message(compared, _shown(path, config)), pytrace=False)
        return found

    return rehearse


def _rehearsed(
    step: Callable[..., Any] | Sequence[str],
    args: Sequence[Any],
    options: dict[str, Any],
) -> RehearsedStep:
    import pgle

    try:
        answer = pgle.rehearse(step, *args, **options)
    except pgle.UserError as error:
        pytest.fail(f"pgle: {error}", pytrace=False)
    return RehearsedStep(answer, _snapshot(answer.result))


def _snapshot(found: Rehearsal) -> Snapshot:
    """Return the facts of the step as compiled with the user's flags."""
    from pgle.account import snapshot

    compiled = found.now.compiled
    module = found.now.module
    parts_us = {part.value: round(us, 3) for part, us in found.account.parts.items()}
    return snapshot.Snapshot(
        module=module.name,
        target=found.request.target.name,
        devices=compiled.num_devices,
        jaxlib=compiled.jaxlib,
        step_us=round(found.account.step_us, 3),
        parts_us=parts_us,
        memory_bytes=compiled.memory_bytes,
        collectives=snapshot.collectives_of(module),
        order=snapshot.order_of(module),
    )


def _baseline_path(node: Any, folder: str | None, name: str) -> Path:
    """Return the baseline file of a test, with a readable name that is the same on every machine.
    If one folder holds all baselines, the name includes the folder of the test.
    """
    test_file, _, test = node.nodeid.partition("::")
    if folder is None:
        test_file = node.path.name
    stem = test_file.removesuffix(node.path.suffix)
    own = "-".join(filter(None, (stem, test, name)))
    file = re.sub(r"[^\w.-]+", "-", own).strip("-") + ".json"
    if folder is None:
        return Path(node.path.parent) / FOLDER / file
    return Path(folder) / file


def _compared(test: str, after: Snapshot, path: Path) -> Compared:
    import pgle
    from pgle.account import snapshot

    summary = _summary(after)
    if not path.exists():
        return Compared(test, str(path), summary, is_new=True)
    try:
        before = snapshot.from_text(path.read_text("utf-8"), str(path))
    except pgle.UserError as error:
        pytest.fail(f"pgle: {error}", pytrace=False)
    changes = snapshot.changes(before, after)
    return Compared(test, str(path), summary, is_new=False, changes=changes)


def _write(path: Path, found: Snapshot) -> None:
    from pgle.account import snapshot
    from pgle.files import write_files

    write_files({path: snapshot.to_text(found)}, force=True)


def _shown(path: Path, config: pytest.Config) -> Path:
    """Return the path relative to the project's folder."""
    is_inside = path.is_absolute() and path.is_relative_to(config.rootpath)
    return path.relative_to(config.rootpath) if is_inside else path


def _message(compared: Compared, path: Path) -> str:
    lines = [f"pgle: the step is not as in {path}"]
    for item in compared.changes:
        note = f"  ({item.note})" if item.note else ""
        lines.append(f"  {item.fact}: {item.before} → {item.after}{note}")
    lines.append("If that is meant: pytest --pgle --pgle-update")
    return "\n".join(lines)


def _shared(path: str, test: str) -> str:
    return f"pgle: two steps have one baseline; give name=…: {path} is of {test}"


class _Report:
    """The steps that the tests compared. Workers of pytest-xdist only send theirs, with their
    reports.
    """

    def __init__(self, config: pytest.Config) -> None:
        file = config.getoption("--pgle-markdown")
        self.is_update = bool(config.getoption("--pgle-update"))
        self.file = Path(file).resolve() if file else None
        # by baseline, since each phase of a test reports it again
        self.seen: dict[str, Compared] = {}

    @pytest.hookimpl(tryfirst=True)  # run before pytest counts failures
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the steps of a test. Fail the test if a test of another worker has the same
        baseline.
        """
        for name, value in report.user_properties:
            if name != _PROPERTY:
                continue
            compared = Compared.from_property(cast("Json", value))
            first = self.seen.setdefault(compared.path, compared)
            if first.test == compared.test:
                self.seen[compared.path] = compared
            else:
                report.outcome = "failed"
                report.longrepr = _shared(compared.path, first.test)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List the steps without a baseline, or the baselines written."""
        from pgle.errors import many

        count = len(self.seen)
        without = sum(item.is_new for item in self.seen.values())
        if self.is_update and count:
            terminalreporter.write_line(f"pgle: {many(count, 'baseline')} written")
        elif without:
            terminalreporter.write_line(
                f"pgle: without a baseline: {without} of {many(count, 'step')}; "
                "pytest --pgle --pgle-update writes them"
            )

    def pytest_sessionfinish(self) -> None:
        """Write the Markdown report if an option asks for it."""
        if self.file is not None:
            lines = _markdown(tuple(self.seen.values()))
            self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _markdown(seen: Sequence[Compared]) -> Iterator[str]:
    """Return a table for each step, changed steps first. All figures are estimates."""
    from pgle.errors import many

    changed = sum(bool(item.changes) for item in seen)
    yield f"### pgle: {changed} of {many(len(seen), 'step')} changed"
    for item in sorted(seen, key=lambda item: not item.changes):
        new = " (new)" if item.is_new else ""
        yield ""
        yield f"**{_inline(item.test)}**{new}: {_inline(item.summary)}"
        if item.changes:
            yield ""
            yield "| | base | this change | |"
            yield "|---|---|---|---|"
        for change in item.changes:
            cells = (change.fact, change.before, change.after, change.note)
            yield f"| {' | '.join(map(_inline, cells))} |"
    yield ""
    yield "XLA:GPU compiled these steps without a GPU."


def _summary(found: Snapshot) -> str:
    """Summarize a step in one line."""
    from pgle.account.snapshot import exposed_us
    from pgle.errors import in_percent

    share = exposed_us(found) / found.step_us if found.step_us else 0.0
    step_ms = found.step_us / 1e3
    return (
        f"{found.module} on {found.devices} × {found.target}: {step_ms:.2f} ms "
        f"(estimated), {in_percent(share)} of it exposed communication"
    )


def _inline(text: str) -> str:
    """Escape a name from outside, so that it cannot start a cell or markup."""
    line = " ".join(text.split())
    return re.sub(r"([|<>`*_\\\[\]@])", r"\\\1", line)
