"""What ranks publish of their programs, and what each concludes; the ranks are objects here."""

from __future__ import annotations

import importlib
import sys

import pytest

from pgle.run.hook import HOOK_SITE
from pgle.xla.flags.shared import PROFILE, shared_settings

HEAD = "HloModule jit_step, is_scheduled=true, num_partitions=2\n\n"
LINE = (
    "  {name} = f32[{size}]{{0}} all-gather(%p), channel_id=1, "
    'replica_groups={{{{0,1}}}}, dimensions={{0}}, metadata={{op_name="{name}"}}\n'
)
TWO = [0, 1]  # the process of each device


class Store:
    """Texts that all ranks see."""

    def __init__(self):
        self.texts = {}

    def put(self, key, value):
        self.texts.setdefault(key, value)

    def under(self, prefix):
        found = sorted(self.texts.items())
        return [
            (key[len(prefix) :], text) for key, text in found if key.startswith(prefix)
        ]


class EndedError(Exception):
    """A rank has ended itself."""


@pytest.fixture
def agreement(monkeypatch):
    monkeypatch.syspath_prepend(str(HOOK_SITE))
    yield importlib.import_module("pgle_hook.agreement")
    for name in [name for name in sys.modules if name.split(".")[0] == "pgle_hook"]:
        del sys.modules[name]


@pytest.fixture
def rank(agreement, monkeypatch):
    """Makes a rank, which looks when it is told to."""
    store = Store()

    def end(line):
        raise EndedError(line)

    def make(number, **known):
        monkeypatch.setattr(agreement.Agreement, "_watch", lambda this: None)
        return agreement.Agreement(store, number, lambda: known, end)

    return make


def text(*sizes, groups="{{0,1}}"):
    """A program that gathers arrays of these sizes, in this order."""
    lines = "".join(LINE.format(name=f"%g{size}", size=size) for size in sizes)
    entry = f"ENTRY %main (p: f32[1]) -> f32[1] {{\n  %p = f32[1]{{0}} parameter(0)\n{lines}"
    whole = f"{HEAD}{entry}  ROOT %r = f32[1]{{0}} copy(%p)\n}}\n"
    return whole.replace("{{0,1}}", groups)


def test_equal_programs_end_nobody(rank):
    first = rank(0)
    second = rank(1)
    first.check("step", TWO, text(1, 2))
    second.check("step", TWO, text(1, 2))
    first.look()


def test_who_comes_last_ends_before_it_executes_and_says_why(rank):
    first = rank(0, jaxlib="0.10.2")
    second = rank(1, jaxlib="0.12.0")
    first.check("step", TWO, text(1, 2))
    with pytest.raises(
        EndedError,
        match=r"^step: the job could hang: .*jaxlib differs \(0.10.2; 0.12.0\)",
    ):
        second.check("step", TWO, text(2, 1))


def test_who_came_first_hears_of_it(rank):
    first = rank(0)
    second = rank(1)
    first.check("step", TWO, text(1, 2))
    with pytest.raises(EndedError) as told:
        second.check("step", TWO, text(2, 1))
    with pytest.raises(EndedError) as heard:
        first.look()
    assert str(heard.value) == str(told.value)


def test_a_variant_that_one_rank_compiled_in_between_ends_nobody(rank):
    """Rank 0 compiles for a last, smaller batch; rank 1 never does."""
    first = rank(0)
    second = rank(1)
    first.check("step", TWO, text(1, 2))
    second.check("step", TWO, text(1, 2))
    first.check("step", TWO, text(3, 4))
    first.check("step", TWO, text(5, 6))
    second.check("step", TWO, text(5, 6))
    first.look()


def test_programs_of_one_name_on_other_devices_end_nobody(rank):
    """Stages of a pipeline, each on processes of its own."""
    ranks = [rank(number) for number in range(4)]
    for number, order in enumerate([(1, 2), (1, 2), (2, 1), (2, 1)]):
        devices = [0, 1] if number < 2 else [2, 3]
        ranks[number].check("stage", devices, text(*order))


def test_orders_that_differ_without_harm_are_judged_once(rank, agreement, monkeypatch):
    """Two processes of two devices, whose groups lie within them or are not shared."""
    first = rank(0)
    second = rank(1)
    shared = text(1, 2, groups="{{0,1},{2,3},{0,2}}")
    first.check("step", [0, 0, 1, 1], shared)
    second.check("step", [0, 0, 1, 1], shared.replace('"%g1"', '"other"'))
    first.look()
    launches = agreement.of_pgle("schedule.launches")
    monkeypatch.delattr(launches, "differences")
    first.look()


def test_a_program_that_communicates_within_a_process_is_not_published(rank, agreement):
    first = rank(0)
    first.check("local", [0, 0], text(1, 2))
    assert first._store.texts == {}


def test_files_serve_where_jax_has_no_store(agreement, tmp_path):
    store = agreement.Folder(str(tmp_path / "order"))
    store.put("pgle-order/sign/step.1/1/ab", "0")
    store.put("pgle-order/who/step.1/1/ab/0", "{}")
    assert store.under("pgle-order/sign/") == [("step.1/1/ab", "0")]


def test_a_profile_counts_by_its_content(tmp_path):
    (tmp_path / "a.pbtxt").write_text("costs {}")
    (tmp_path / "b.pbtxt").write_text("costs {}")
    given = [
        shared_settings({PROFILE: str(tmp_path / name)})
        for name in ("a.pbtxt", "b.pbtxt")
    ]
    assert given[0] == given[1]
    absent = shared_settings({PROFILE: str(tmp_path / "c.pbtxt")})
    assert absent["the profile"].endswith("c.pbtxt, which cannot be read here")


def test_one_process_is_left_as_it_is(agreement, monkeypatch):
    monkeypatch.setattr(agreement.jax_private, "process_of", lambda: (0, 1))
    monkeypatch.setattr(agreement.jax_private, "first_executions", pytest.fail)
    agreement.attach(None, {}, "", lambda line: None)


def test_what_the_hook_takes_of_pgle_needs_the_standard_library_only():
    """The program's interpreter need not have pgle's dependencies."""
    import subprocess

    code = (
        f"import sys; sys.path.insert(0, {str(HOOK_SITE)!r})\n"
        "from pgle_hook.agreement import of_pgle\n"
        "before = set(sys.modules)\n"
        "of_pgle('schedule.launch_order'), of_pgle('schedule.launches')\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(new - sys.stdlib_module_names)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True
    )
    assert done.stdout.strip() == "{'pgle'}", done.stderr
