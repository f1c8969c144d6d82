"""How `pgle advise` judges what it tried, without a compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from accounts import account, opportunity

from pgle.account.next_move import Known
from pgle.account.value import OpportunityKind
from pgle.costs.estimate.estimate import estimator
from pgle.costs.profile.lookup import LookupTable
from pgle.costs.profile.value import Origin, Profile
from pgle.errors import UserError, WorkloadError
from pgle.next import Sentence, WayEnd
from pgle.report.account import actions, follow, note
from pgle.run.advise import (
    MOST_SETTINGS,
    SAME_CALL,
    Advised,
    _is_small_alone,
    _setting_name,
    _Trials,
    best_of,
    flag_settings,
)
from pgle.run.alternative_steps import (
    Elsewhere,
    Made,
    StepMaker,
    Tried,
    Wanted,
    check_takes_the_same,
)
from pgle.run.alternatives import BY_HAND, Alternative, Kind
from pgle.run.attempts import Attempt, shown_of
from pgle.run.capture.captured import CallSite, ComparedValues
from pgle.run.coverage import MeasuredCosts
from pgle.run.process.endings import Ending
from pgle.run.rehearse_program import LHS_ON
from pgle.run.untried import UNCHANGED
from pgle.run.variants import ModuleVariants
from pgle.schedule.control import Controlled
from pgle.schedule.predict import Gain, Steps, predict
from pgle.schedule.verdict import Verdict
from pgle.tune.search import Axis
from pgle.xla.flags.catalogue import LHS
from pgle.xla.hlo.dumps import read_module
from pgle.xla.targets import find_hardware, load_target

STEP = (
    "hlo/jax-0.10.2/off/module_0001.jit_step.sm_8.0_gpu_after_optimizations.hlo.pb.xz"
)
FOLDER = Path("values")
BY_HAND_CALL = Alternative(Kind.ATTENTION, "a.py:1", "cudnn", "", made_at=BY_HAND)
PRECISION = Alternative(Kind.PRECISION, "", "tensorfloat32", "")
BATCH = Alternative(Kind.VARIED, "batch", "batch=8", "batch=8")
MODULE = """HloModule jit_step, is_scheduled=true

%same (a: f32[8]) -> f32[8] {{
  %a = f32[8]{{0}} parameter(0)
  ROOT %exp = f32[8]{{0}} exponential(%a)
}}

%other (b: f32[{size}]) -> f32[{size}] {{
  %b = f32[{size}]{{0}} parameter(0)
  ROOT %sine = f32[{size}]{{0}} sine(%b)
}}

ENTRY %main (x: f32[8], y: f32[{size}]) -> (f32[8], f32[{size}]) {{
  %x = f32[8]{{0}} parameter(0)
  %y = f32[{size}]{{0}} parameter(1)
  %{first} = f32[8]{{0}} fusion(%x), kind=kLoop, calls=%same
  %{second} = f32[{size}]{{0}} fusion(%y), kind=kLoop, calls=%other
  ROOT %out = (f32[8]{{0}}, f32[{size}]{{0}}) tuple(%{first}, %{second})
}}
"""
NO_BOUND = SimpleNamespace(lower_bound=False)
NEAR = ComparedValues(difference=1e-4, tolerance=1e-3)
UNKNOWN = ComparedValues(why="even at a small size it takes 1e+12 operations")


def better(change: Alternative, values: ComparedValues | None = None) -> Attempt:
    return Attempt((change,), Verdict.BETTER, "", values=values)


def trials(attempts: Sequence[Attempt] = (), **fields: Any) -> _Trials:
    names = ("asked", "command", "request", "maker", "makers", "compiler")
    given = dict.fromkeys(names)
    found = {**given, "on_attempt": lambda *_: None, "ending": Ending(), **fields}
    return _Trials(attempts=list(attempts), **cast(Any, found))


def together(*parts: Attempt, others: Sequence[Attempt] = ()) -> Attempt:
    """The combination of some attempts, with what is known of its values."""
    changes = tuple(part.changes[0] for part in parts)
    found = Attempt(changes, Verdict.BETTER, "")
    return trials([*parts, *others])._with_values(found, FOLDER)


def test_a_combination_is_compared_if_all_of_its_parts_are() -> None:
    far = ComparedValues(difference=0.9, tolerance=1e-2)
    other = Alternative(Kind.ATTENTION, "b.py:2", "cudnn", "")
    differs = Attempt((other,), Verdict.DIFFERS, "", values=far)
    precise = better(PRECISION, NEAR)
    both = together(better(BY_HAND_CALL, NEAR), precise, others=[differs])
    assert (both.values, both.are_values_compared) == (NEAR, True)
    unknown = together(better(BY_HAND_CALL, UNKNOWN), precise)
    assert (unknown.values, unknown.are_values_compared) == (UNKNOWN, False)


@pytest.mark.parametrize(
    ("saved", "why", "is_tried"),
    [(0.004, "", True), (0.001, "", False), (0.004, "estimates do not agree", False)],
)
def test_what_saves_little_of_a_slow_step_is_tried_on_a_fast_one(
    saved: float, why: str, is_tried: bool
) -> None:
    attention = Attempt(
        (BY_HAND_CALL,), Verdict.BETTER, "", gained=Controlled(Gain(0.7, 0.7, 0.7, 0.0))
    )
    gained = Controlled(Gain(saved, saved, saved, 0.0))
    small = Attempt((PRECISION,), Verdict.UNSURE, why, gained=gained)
    assert _is_small_alone(small, attention) is is_tried


def test_values_of_another_command_are_not_compared() -> None:
    assert not better(BATCH).are_values_compared


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        (8, 9, Verdict.BETTER),
        (8, 39, Verdict.WORSE),
        (40, 39, Verdict.UNSURE),
        (40, 9, Verdict.FITS),
    ],
)
def test_a_step_that_does_not_fit_is_never_better(
    before: int, after: int, verdict: Verdict
) -> None:
    request = SimpleNamespace(allocator_bytes=10)
    judging = trials(request=request)
    base = cast(Tried, SimpleNamespace(memory_bytes=before))
    prediction = SimpleNamespace(lower_bound=False)
    tried = SimpleNamespace(memory_bytes=after, prediction=prediction)
    shorter = Controlled(Gain(0.1, 0.1, 0.1, 0.0))
    assert judging._judged(cast(Tried, tried), shorter, base).verdict is verdict


def test_a_longer_step_says_what_memory_it_saves() -> None:
    request = SimpleNamespace(allocator_bytes=0)
    judging = trials(request=request)
    breakdown = SimpleNamespace(
        compute_us=1.0, exposed_communication_us=0.0, exposed_copy_us=0.0, idle_us=0.0
    )
    prediction = SimpleNamespace(
        lower_bound=False,
        uncertain=(),
        step_us=1.0,
        timeline=SimpleNamespace(breakdown=breakdown),
    )
    gib = 1 << 30
    base = cast(Tried, SimpleNamespace(memory_bytes=8 * gib, prediction=prediction))
    tried = cast(Tried, SimpleNamespace(memory_bytes=3 * gib, prediction=prediction))
    longer = Controlled(Gain(-0.1, -0.1, -0.1, 0.0))
    found = judging._judged(tried, longer, base)
    assert found.verdict is Verdict.WORSE
    assert found.why == "it saves 5.0 GiB of memory"


def test_what_makes_the_step_fit_is_the_best_if_nothing_else_fits() -> None:
    made = [
        Attempt((change,), verdict, "", gained=Controlled(Gain(share, share, share, 0)))
        for change, verdict, share in (
            (PRECISION, Verdict.UNSURE, 0.3),
            (BATCH, Verdict.FITS, -0.2),
            (BY_HAND_CALL, Verdict.FITS, -0.1),
        )
    ]
    found = cast(Any, SimpleNamespace(attempts=made))
    best = Advised.best.fget(found)  # type: ignore[attr-defined]
    assert best.changes == (BY_HAND_CALL,)


def test_a_call_with_another_kernel_is_not_compared_with_itself() -> None:
    call = Alternative(Kind.ATTENTION, "a.py:1", "cudnn", "")
    nothing_runs = trials(makers=None)
    found = nothing_runs._with_values(better(call), FOLDER)
    assert found.values == SAME_CALL
    assert not found.are_values_compared


def test_the_counter_says_whose_values_are_compared() -> None:
    told: list[Any] = []
    makers = SimpleNamespace(compared=lambda *_: NEAR)
    known = trials(makers=makers, on_attempt=lambda *what: told.append(what))
    known.begun, known.planned = 3, 7
    known._with_values(better(PRECISION), FOLDER)
    assert told == [("comparing values of precision tensorfloat32", 3, 7)]


@pytest.mark.parametrize(
    ("end", "code"), [(KeyboardInterrupt(), 130), (SystemExit(143), 143)]
)
def test_a_signal_ends_the_trials_and_keeps_what_is_known(
    end: BaseException, code: int
) -> None:
    def made(*_: Any) -> None:
        raise end

    known = better(PRECISION, NEAR)
    makers = SimpleNamespace(make_all=made)
    ended = trials([known], makers=makers)
    ended.program = ""
    ended._try_all([BY_HAND_CALL])
    assert ended.ending.code == code
    assert ended.attempts == [known]
    assert ended.alone == []


@pytest.mark.parametrize("end", [KeyboardInterrupt(), SystemExit(143)])
def test_a_signal_while_values_are_compared_keeps_what_is_compiled(
    end: BaseException,
) -> None:
    def compared(*_: Any) -> None:
        raise end

    makers = SimpleNamespace(compared=compared)
    ended = trials(makers=makers)
    with pytest.raises(type(end)):
        ended._with_values(better(PRECISION), FOLDER)
    (kept,) = ended.attempts
    assert (kept.verdict, kept.why) == (
        Verdict.UNSURE,
        "values not compared: stopped",
    )
    assert ended.alone == [PRECISION]


def test_a_step_that_a_lost_worker_began_is_made_again(tmp_path: Path) -> None:
    module = tmp_path / "jax_ir0001_jit_train_step_compile.mlir"
    module.write_text('func.func @main(%arg0: tensor<4xf32> loc("w")) -> tensor<4xf32>')
    request = cast(Any, SimpleNamespace(module=module))
    maker = StepMaker(ModuleVariants(request), request, tmp_path / "alternatives")
    donation = Alternative(Kind.DONATION, "train_step", "w", "")
    wanted = Wanted("1", (donation,))
    first = maker._captured(wanted)
    maker.clear(wanted)
    assert maker._captured(wanted) == first


def test_an_alternative_that_fails_says_why_and_not_which_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        why = "ended with exit code 1 (ValueError: no such kernel)"
        raise WorkloadError(1, why, who="python train.py " + "--word " * 50)

    monkeypatch.setattr(StepMaker, "_captured", fails)
    maker = StepMaker(*cast(Any, (None, None)), FOLDER)
    made = maker.make_step(Wanted("1", (PRECISION,)), (), cast(Any, None))
    assert made.failure == (
        "the program ended with exit code 1 (ValueError: no such kernel)"
    )


DROPPED = CallSite("attention", "a.py:1", why="its weights are dropped")
FAILED = Attempt((PRECISION,), Verdict.UNSURE, "it fails: no kernel")
DONATION = Alternative(Kind.DONATION, "", "ws", "")


def test_what_failed_or_changed_nothing_was_tried_in_vain() -> None:
    alone = [BY_HAND_CALL, PRECISION, DONATION]
    found = trials([FAILED], alone=alone, left_alone={DROPPED: None})
    assert found._kinds_left_alone() == {Kind.ATTENTION: DROPPED.why}
    assert found._kinds_in_vain(alone) == {
        Kind.PRECISION: "precision tensorfloat32: it fails: no kernel",
        Kind.DONATION: f"donation ws: {UNCHANGED}",
    }


def test_what_failed_is_still_open_if_the_budget_left_others_of_its_kind() -> None:
    other = replace(PRECISION, value="bfloat16")
    found = trials([FAILED], alone=[PRECISION])
    assert found._kinds_in_vain([PRECISION, other]) == {}


def test_an_edit_that_failed_is_never_proposed() -> None:
    """As of attention over 65 tokens, which cuDNN refuses."""
    why = "could not be made: NotImplementedError: no kernel for 65 tokens"
    failed = Attempt((BY_HAND_CALL,), Verdict.UNSURE, why)
    in_vain = trials([failed], alone=[BY_HAND_CALL])._kinds_in_vain([BY_HAND_CALL])
    shown = shown_of([failed], cast(Any, None), in_vain)
    fuse = opportunity(OpportunityKind.ATTENTION, 0.4, edit="Call the kernel")
    found = account(fuse).with_trials(shown)
    end = follow(Known(account=found), {})
    assert isinstance(end, Sentence) and end.end is WayEnd.DONE
    assert note(found) == f"Tried in vain: attention cudnn: {why}."
    assert actions(found) == ()


def test_steps_of_workers_are_judged_in_their_order() -> None:
    second = Made((PRECISION,), program="2")
    first = Made((BY_HAND_CALL,), program="1")
    workers = SimpleNamespace(results=lambda make, values: [(1, second), (0, first)])
    found = Elsewhere(cast(Any, workers)).make_all(cast(Any, None), (), ())
    assert list(found) == [first, second]


def test_flags_are_judged_by_what_they_add() -> None:
    flags = Alternative(Kind.FLAGS, "preset", "--xla_a=true", "")
    over_base = Controlled(Gain(0.5, 0.5, 0.5, 0.0))
    added = Controlled(Gain(-0.01, -0.01, -0.01, 0.0))
    found = Attempt((PRECISION, flags), Verdict.WORSE, "", None, over_base, added=added)
    assert found.deciding_gain == added
    assert found.least == 0.5


def test_a_setting_of_more_flags_must_be_surely_shorter() -> None:
    edit = better(PRECISION)
    first = with_flags(100.0)
    assert best_of([edit, first, with_flags(99.9)]) is first
    shorter = with_flags(90.0)
    assert best_of([edit, first, shorter]) is shorter


@pytest.mark.parametrize(
    ("step_us", "work", "needs_control"),
    [(90.0, 1.0, True), (99.9, 1.0, False), (110.0, 1.0, False), (110.0, 2.0, True)],
)
def test_only_a_step_that_may_be_better_is_compiled_again(
    step_us: float, work: float, needs_control: bool
) -> None:
    now = taking(100.0)
    base = replace(now, control=now.prediction)
    maker = maker_in(allocator_bytes=0)
    assert maker._can_be_better(taking(step_us), base, work) is needs_control


def test_if_the_program_does_not_fit_each_step_is_compiled_again() -> None:
    now = taking(100.0, memory_bytes=9)
    base = replace(now, control=now.prediction)
    assert maker_in(allocator_bytes=8)._can_be_better(taking(110.0), base, 1.0)


def maker_in(allocator_bytes: int) -> StepMaker:
    """What makes steps for a GPU with some memory."""
    request = SimpleNamespace(allocator_bytes=allocator_bytes)
    return StepMaker(*cast(Any, (None, request)), FOLDER)


def with_flags(step_us: float) -> Attempt:
    """A setting of flags that helps, with its step."""
    flags = Alternative(Kind.FLAGS, "preset", "--xla_a=true", "")
    return Attempt((PRECISION, flags), Verdict.BETTER, "", taking(step_us))


def taking(step_us: float, memory_bytes: int = 0) -> Tried:
    """A step with one matrix product, compiled once."""
    timeline = SimpleNamespace(breakdown=SimpleNamespace(idle_us=0.0))
    product = SimpleNamespace(kind="matmul", origin=Origin.ESTIMATED)
    prediction = SimpleNamespace(
        step_us=step_us,
        steps_us=(step_us,) * len(Steps._fields),
        timeline=timeline,
        program=SimpleNamespace(ops=[product]),
    )
    compiled = SimpleNamespace(memory_bytes=memory_bytes)
    return Tried(cast(Any, compiled), cast(Any, prediction), None)


def test_flags_begin_with_the_scheduler_if_it_is_off(testdata: Path) -> None:
    module = read_module(testdata / STEP)
    prediction = predict(module, None, "a100")
    compiled = SimpleNamespace(lhs=None, jaxlib="0.10.2", scheduled=module)
    step = SimpleNamespace(prediction=prediction, compiled=compiled, memory_bytes=0)
    target = load_target("a100")
    found = flag_settings(cast(Tried, step), (), target)
    assert found[0].value == LHS_ON
    assert all(item.value.startswith(LHS_ON) for item in found)
    assert len({item.value for item in found}) == len(found) == MOST_SETTINGS
    found = flag_settings(cast(Tried, step), (LHS,), target)
    assert not any(LHS in item.value for item in found)


def test_estimates_alone_must_not_give_the_other_sign() -> None:
    shorter = Controlled(Gain(0.1, 0.1, 0.1, 0.0))
    longer = Controlled(Gain(-0.1, -0.1, -0.1, 0.0))
    step = cast(Tried, SimpleNamespace(memory_bytes=0, prediction=NO_BOUND))
    judging = trials(request=SimpleNamespace(allocator_bytes=0))
    assert judging._judged(step, shorter, step).verdict is Verdict.BETTER
    assert judging._judged(step, shorter, step, shorter).verdict is Verdict.BETTER
    assert judging._judged(step, shorter, step, longer).verdict is Verdict.UNSURE


def test_an_alternative_takes_measured_costs_of_what_it_shares(tmp_path: Path) -> None:
    now = table(
        tmp_path / "now.txt", MODULE, size=16, first="fusion.1", second="fusion.2"
    )
    new = table(
        tmp_path / "new.txt", MODULE, size=64, first="fusion.2", second="fusion.1"
    )
    rows = (now.rows["fusion.1"], now.rows["fusion.2"])
    costs = tuple(row.cost(7.0, Origin.MEASURED) for row in rows)
    measured = MeasuredCosts(Profile(costs), now, find_hardware("h100"))
    found = new.costs(measured.of(new))
    assert found["fusion.2"].cost_us == 7.0
    assert found["fusion.2"].origin is Origin.MEASURED
    assert found["fusion.1"].origin is Origin.ESTIMATED  # of another size


PRODUCT = """HloModule jit_step, is_scheduled=true

ENTRY %main (p: {dtype}[512,512]) -> f32[512,512] {{
  %p = {dtype}[512,512] parameter(0)
  ROOT %dot.1 = f32[512,512] dot(%p, %p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\
{algorithm}, metadata={{op_name="jit(step)/dot"}}
}}
"""


def table(path: Path, text: str, **words: object) -> LookupTable:
    """What XLA looks up in a module with some words in its text."""
    path.write_text(text.format(**words))
    return LookupTable(read_module(path))


@pytest.mark.parametrize(
    "edited",
    [
        {"dtype": "f32", "algorithm": ", algorithm=dot_bf16_bf16_f32"},
        {"dtype": "bf16", "algorithm": ""},
    ],
    ids=["rounds", "cast"],
)
def test_a_product_of_fewer_bits_takes_less_than_the_measured_one(
    edited: dict[str, str], tmp_path: Path
) -> None:
    now, new = (
        table(tmp_path / f"{place}.txt", PRODUCT, **words)
        for place, words in enumerate(({"dtype": "f32", "algorithm": ""}, edited))
    )
    gpu = find_hardware("a100")
    took = now.rows["dot.1"].cost(30.0, Origin.MEASURED)
    (cost,) = MeasuredCosts(Profile((took,)), now, gpu).of(new).costs
    before_us, after_us = (
        estimator(side.module, gpu)(side.rows["dot.1"].instruction)
        for side in (now, new)
    )
    assert after_us < before_us
    assert cost.cost_us == pytest.approx(30.0 * after_us / before_us)
    assert cost.origin is Origin.ESTIMATED


def test_a_threshold_is_named_with_its_size() -> None:
    flag = "xla_gpu_all_reduce_combine_threshold_bytes"
    start = {flag: str(32 << 20)}
    axis = Axis("all-reduce combined to", "all-reduce", (start,), flag)
    assert _setting_name(axis) == "all-reduce combined to 32 MiB"


def test_a_step_that_was_captured_with_another_batch_is_not_compared(tmp_path):
    def taking(name: str, *types: str) -> Path:
        arguments = ", ".join(
            f"%arg{at}: tensor<{each}>" for at, each in enumerate(types)
        )
        module = tmp_path / name
        module.write_text(
            f"  func.func public @main({arguments}) -> (tensor<f32>) {{\n"
        )
        return module

    now = taking("now.mlir", "4x4xf32", "64x4xf32", "4x4xi1")
    check_takes_the_same(now, taking("no_mask.mlir", "4x4xf32", "64x4xf32"))
    other = taking("other.mlir", "4x4xf32", "8x4xf32", "4x4xi1")
    with pytest.raises(UserError, match="<8x4xf32> in place of tensor<64x4xf32>"):
        check_takes_the_same(now, other)
