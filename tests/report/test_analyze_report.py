"""What `pgle analyze` says of a step in lines."""

from pgle.analyze.differences import Differences, StepVerdict
from pgle.analyze.layers import Layer, Layers
from pgle.report.analyze import _heavy_layers
from pgle.report.page.value import Table
from pgle.report.step_differences import difference_sections
from pgle.report.timeline import group_label, most_exposed
from pgle.schedule.placements import ExposedGroup
from pgle.schedule.simulate import StepBreakdown


def test_the_heaviest_layers_are_named_by_their_computing_time() -> None:
    exchanged = Layer("exchange", "forward", 20.0, 300.0, 1, 0.0, 0.0, None)
    computed = Layer("mlp", "forward", 60.0, 0.0, 1, 0.0, 0.0, None)
    found = _heavy_layers(Layers((exchanged, computed), ()), 100.0)
    assert found == "layers mlp 60 % · exchange 20 %"


def test_exposed_groups_that_are_not_named_are_one_row_so_that_rows_add_up() -> None:
    times = {"all-gather": 90.0, "all-to-all": 6.0, "all-reduce": 3.0, "permute": 1.0}
    groups = [
        ExposedGroup(kind, "why", kind, count=2, after_us=us)
        for kind, us in times.items()
    ]
    shown = most_exposed(groups, least_us=0.0)
    assert [group_label(one) for one in shown][-1] == "others (4)"
    assert sum(one.after_us for one in shown) == sum(times.values())


def test_work_of_no_instruction_that_only_one_step_has_is_a_part_of_both() -> None:
    before = StepBreakdown(90.0, 0, 0, 10.0, 100.0, 0, 0, other_us=0.0)
    after = StepBreakdown(90.0, 0, 0, 10.0, 110.0, 0, 0, other_us=10.0)
    verdict = StepVerdict.LONGER
    both = Differences(before, after, 0, (), 1, 0, 0, verdict, 10, 1, "", (0, 0), "")
    _, parts = difference_sections(both)
    (content,) = parts.parts
    assert isinstance(content, Table)
    assert ("other GPU work", None, 10.0, 10.0, 0.1) in content.rows
