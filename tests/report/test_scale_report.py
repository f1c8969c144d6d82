"""What `pgle scale` prints: the verdict, a row for each size, what would help, charts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from accounts import account, opportunity
from attrs import evolve

from pgle.account.value import Account, OpportunityKind
from pgle.report.page.html import render
from pgle.report.page.value import Chart
from pgle.report.scale import scale_page
from pgle.requests.predictions import Scale
from pgle.run.scale import Scaling
from pgle.scale.answer import Exposed, RowControl, ScaleRow
from pgle.scale.control import answer_of_both
from pgle.xla.targets import find_hardware

GIB = 1 << 30


def searchable(exposed: float) -> Account:
    """An account in which only other flags could save something."""
    flags = opportunity(
        OpportunityKind.FLAGS, None, most=exposed, title="Search for flags"
    )
    return account(flags, exposed=exposed)


def row(
    devices: int,
    step_us: float,
    exposed_us: float = 0.0,
    weights: float = 1.0,
    **more: object,
) -> ScaleRow:
    reduced = Exposed(
        "all-reduce",
        devices,
        max(devices // 8, 1),
        "network",
        exposed_us,
        exposed_us,
        1,
        weights * exposed_us,
    )
    plain = ScaleRow(
        devices, module="jit_step", step_us=step_us, least_us=0.95 * step_us, most_us=1.2 * step_us,
        compute_us=step_us - exposed_us, exposed_us=exposed_us, by_collective=(reduced,) if exposed_us else (),
        ceiling_us=step_us - exposed_us, operations=1e12, argument_bytes=GIB, temp_bytes=GIB, memory_bytes=2 * GIB,
        limit_bytes=59 * GIB, account=searchable(exposed_us / step_us),
    )  # fmt: skip
    return replace(plain, **more)


def found(
    *rows: ScaleRow,
    measured: dict[int, float] | None = None,
    fit: str = "",
    vary: str = "",
) -> Scaling:
    request = Scale(
        ("python", "train.py", "{devices}"), tuple(item.devices for item in rows), output=Path("out"), fit=fit,
        vary={vary: []} if vary else {},
    )  # fmt: skip
    judged, control = answer_of_both(rows, measured)
    return Scaling(request, rows, judged, find_hardware("h100"), 0, control)


BROKEN = (row(8, 1e5), row(64, 1.04e5, 4e3), row(512, 1.25e5, 2.5e4))


def test_the_verdict_names_what_breaks_and_where() -> None:
    page = scale_page(found(*BROKEN))
    assert (
        page.verdict
        == "Scales to 64 GPUs; at 512 gradients' all-reduce over 64 hosts is exposed for 20 % of the step"
    )
    assert page.tone == "warn"
    assert page.next[0].endswith("-- python train.py 512")


def test_the_largest_lever_of_the_first_and_the_judged_size_is_named() -> None:
    attention = account(
        opportunity(OpportunityKind.ATTENTION, 0.3, title="Fuse the attention")
    )
    large = row(64, 1.25e5, 2.5e4, account=attention)
    notes = "\n".join(map(str, scale_page(found(row(8, 1e5), large)).notes))
    assert "At 8 GPUs: Nothing to gain above 0.5 % of the step" in notes
    assert "At 64 GPUs: Fuse the attention: saves 30.0 %" in notes


def test_what_scales_says_how_far() -> None:
    assert (
        scale_page(found(*BROKEN[:2])).verdict == "Scales to 64 GPUs (efficiency 96 %)"
    )


def test_what_breaks_at_the_second_size_does_not_scale() -> None:
    verdict = scale_page(found(row(8, 1e5), row(64, 1.25e5, 2.5e4))).verdict
    assert verdict.startswith(
        "Does not scale beyond 8 GPUs; at 64 gradients' all-reduce over 8 hosts is exposed for"
    )
    verdict = scale_page(found(row(8, 1e5, 1.0), row(64, 1.5e5, 2.0))).verdict
    assert (
        verdict
        == "Does not scale beyond 8 GPUs; at 64 efficiency is 67 %: compute grows most"
    )


@pytest.mark.parametrize(
    ("word", "is_said"), [("32", True), ("{devices}", True), ("{4*devices}", False)]
)
def test_a_batch_that_cannot_be_divided_should_grow(word: str, is_said: bool) -> None:
    refused = ScaleRow(48, failure="ValueError: the batch, 32, is not divisible by 48")
    scaled = found(*BROKEN, refused)
    scaled = replace(
        scaled,
        request=evolve(scaled.request, build=("python", "train.py", "--batch", word)),
    )
    assert (
        any(
            "let it grow with the GPUs: --batch '{2*devices}'" in str(note)
            for note in scale_page(scaled).notes
        )
        == is_said
    )


def test_one_size_names_the_fastest_variant() -> None:
    rows = [
        row(64, us, values={"mesh": name}, shown={"mesh": name})
        for name, us in (("a", 2e5), ("b", 1e5))
    ]
    page = scale_page(found(*rows, vary="mesh"))
    assert page.verdict.startswith("mesh=b: 100.0 ms on 64 GPUs (")
    assert page.table is not None
    assert [line[1] for line in page.table.rows] == ["b", "a"]
    assert "overlap" not in page.verdict


def test_variants_whose_ranges_overlap_say_so() -> None:
    rows = [
        row(64, us, values={"tp": name}, shown={"tp": name})
        for name, us in (("1", 1e5), ("2", 1.1e5))
    ]
    verdict = scale_page(found(*rows, vary="tp")).verdict
    assert verdict.endswith(", ahead of tp=2 by 9.1 %, but the ranges overlap")


def test_a_network_that_nobody_named_is_assumed() -> None:
    assert "network 50 GB/s (assumed)" in scale_page(found(*BROKEN)).identity


def test_gradients_are_shared_by_more_work_and_activations_are_not() -> None:
    titles = [action.title for action in scale_page(found(*BROKEN)).actions]
    assert any("accumulate gradients" in title for title in titles)
    activations = (BROKEN[0], row(512, 1.25e5, 2.5e4, weights=0.0))
    assert not any(
        "accumulate" in action.title
        for action in scale_page(found(*activations)).actions
    )


def test_more_work_that_may_not_fit_is_not_proposed() -> None:
    rows = (BROKEN[0], replace(BROKEN[2], temp_bytes=40 * GIB, memory_bytes=41 * GIB))
    titles = [action.title for action in scale_page(found(*rows)).actions]
    assert "Accumulate gradients at 512 GPUs" in titles


def test_a_size_that_the_program_refuses_is_a_line() -> None:
    page = scale_page(
        found(
            row(8, 1e5),
            ScaleRow(
                12, failure="IndivisibleError: 8 by 12 (full shape (8, (1)), axis"
            ),
        )
    )
    assert page.table is not None
    assert len(page.table.rows) == 2
    assert "No step at 12 GPUs: IndivisibleError: 8 by 12" in page.notes


def test_what_does_not_fit_is_to_be_made_to_fit() -> None:
    page = scale_page(
        found(row(8, 1e5, memory_bytes=80 * GIB), row(64, 1e5, memory_bytes=78 * GIB))
    )
    said = "Does not fit: 78.00 GiB on 64 GPUs, where jax's allocator has 59.00 GiB"
    assert (page.verdict, page.tone) == (said, "bad")
    assert page.actions[0].title == "Make it fit at 64 GPUs"
    assert page.done == (
        "write {batch} in the command, and give --vary batch=1,2,4,8 --fit batch"
    )


def test_what_fits_if_jax_gets_more_of_the_memory_says_so() -> None:
    page = scale_page(found(row(8, 1e5, memory_bytes=70 * GIB)))
    assert (
        page.actions[0].why
        == "11.00 GiB are missing; set XLA_PYTHON_CLIENT_MEM_FRACTION=0.94"
    )
    assert page.done == (
        "repeat with XLA_PYTHON_CLIENT_MEM_FRACTION=0.94 in the environment"
    )


def test_a_fitted_value_that_was_the_largest_given_says_so() -> None:
    said = "8 GPUs, n tried: 4: 2.00 GiB; larger values may fit, too"
    assert (
        said
        in scale_page(found(row(8, 1e5, tried={"4": 2 * GIB}), fit="n", vary="n")).notes
    )
    assert (
        said
        not in scale_page(
            found(row(8, 1e5, tried={"4": 2 * GIB, "8": None}), fit="n", vary="n")
        ).notes
    )


def test_tensor_parallel_across_hosts_is_to_stay_inside_one() -> None:
    page = scale_page(
        found(row(8, 1e5), row(16, 1.25e5, 2.5e4, weights=0.4, account=None))
    )
    first, second = (action.title for action in page.actions)
    assert first == "Keep the mesh axis of the all-reduce inside a host"
    assert second.startswith("Give each of 16 GPUs more work")
    assert page.done == "repeat with --vary mesh=A,B and {mesh} in the command"


def test_a_size_without_a_step_is_in_the_verdict() -> None:
    page = scale_page(
        found(
            row(8, 1e5),
            ScaleRow(64, failure="ValueError: no"),
            row(512, 1e5, memory_bytes=60 * GIB),
        )
    )
    assert (
        page.verdict
        == "Scales to 512 GPUs (efficiency 100 %); 64 GPUs: no step; 512 GPUs: does not fit"
    )
    assert page.tone == "warn"


def test_all_that_have_a_step_fit_is_not_all_fit() -> None:
    page = scale_page(
        found(row(8, 1e5), row(64, 1e5), ScaleRow(48, failure="ValueError: no"))
    )
    assert any(str(note).startswith("All 2 with a step fit: ") for note in page.notes)
    assert any(
        str(note).startswith("All fit: ") for note in scale_page(found(*BROKEN)).notes
    )


def test_a_program_that_fails_at_every_size_says_where() -> None:
    page = scale_page(
        found(
            ScaleRow(
                8, failure="NameError: name 'T' is not defined (train.py, line 12)"
            )
        )
    )
    assert (
        page.verdict
        == "No step at any size: NameError: name 'T' is not defined (train.py, line 12)"
    )
    assert page.done == "correct the program, then repeat the command"
    assert (page.table, page.notes) == (None, ())


def test_the_next_command_writes_into_a_free_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned").mkdir()
    page = scale_page(found(*BROKEN))
    assert "-o tuned-2 " in page.next[0]
    assert page.next[0] == next(
        action.command for action in page.actions if action.command
    )


def test_a_measured_step_says_how_it_moves_the_others() -> None:
    page = scale_page(found(*BROKEN, measured={8: 1.1e5}))
    assert any(
        "every step is multiplied by 1.100. The range also holds the 10.00 ms added"
        in str(n)
        for n in page.notes
    )
    doubt = "That is far from the prediction: was it measured with this program, batch and GPU?"
    assert doubt not in page.notes
    assert doubt in scale_page(found(*BROKEN, measured={8: 7e5})).notes


def test_the_charts_say_in_words_what_they_show() -> None:
    page = scale_page(found(*BROKEN))
    steps, efficiency = (part for part in page.parts if isinstance(part, Chart))
    assert steps.alt.startswith("8 GPUs 100.0 ms, of which")
    assert steps.svg.count("part exposed") == 2
    assert efficiency.alt.startswith("8 GPUs efficiency 100 %")
    for label in ("ideal: 100 %", "breaks: 90 %", ">range<"):
        assert label in efficiency.svg
    assert "<svg" in render(page)


@pytest.mark.parametrize(
    ("most", "shown"), [(None, "100.0 (from 95.0)"), (1.3e5, "100.0 (95.0–130.0)")]
)
def test_a_step_without_an_end_has_no_largest_value(
    most: float | None, shown: str
) -> None:
    page = scale_page(found(row(8, 1e5, most_us=most)))
    assert page.table is not None
    assert str(page.table.rows[0][1]) == shown


def test_a_profile_of_other_work_says_so() -> None:
    said = "The profile is of another batch, program or jax: profile the same work per GPU."
    assert said in scale_page(found(row(8, 1e5, covered_share=0.02))).notes
    assert (
        said
        not in scale_page(
            found(row(8, 1e5, covered_share=0.99), row(64, 1e5, covered_share=0.4))
        ).notes
    )


def test_a_range_without_measure_takes_no_digits_from_the_step() -> None:
    page = scale_page(found(row(8, 7.954e5, most_us=2.069e8), row(64, 8e5)))
    assert page.table is not None
    assert [str(line[1]).partition("–")[0] for line in page.table.rows] == [
        "795.4 (755.6",
        "800.0 (736.9",
    ]


FLAG = "--xla_gpu_enable_triton_gemm=false"


def checked(devices: int, step_us: float, other_us: float) -> ScaleRow:
    """A row with a second compilation that takes `other_us`."""
    return row(devices, step_us, control=RowControl(FLAG, row(devices, other_us)))


def test_a_size_where_only_one_compilation_breaks_is_not_a_verdict() -> None:
    page = scale_page(found(checked(8, 1e5, 1e5), checked(64, 1.04e5, 1.2e5)))
    assert page.verdict == (
        "How far it scales depends on what autotuning picks: to 64 GPUs or to 8 GPUs"
    )
    assert page.tone == "warn"


def test_the_control_is_a_note_with_the_flag_and_how_far_compilation_went() -> None:
    page = scale_page(found(checked(8, 1e5, 1.1e5)))
    notes = [str(note) for note in page.notes]
    assert (
        f"Control ({FLAG}): 110.0 ms at 8 GPUs; scheduled, kernels not compiled."
        in notes
    )


def test_a_second_compilation_that_failed_is_named() -> None:
    control = RowControl(FLAG, failure="XLA ended")
    notes = [
        str(note) for note in scale_page(found(row(8, 1e5, control=control))).notes
    ]
    assert "1 row: XLA ended." in notes
