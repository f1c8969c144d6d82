"""Warnings of many modules."""

from pgle.costs.measure.measured import folded


def test_what_is_said_of_many_modules_is_said_once():
    lines = [
        (name, f"{name}: one execution") for name in ("step", "init", "psum", "norm")
    ]
    assert folded(lines) == ("step, init, psum and 1 more: one execution",)


def test_few_modules_are_named():
    assert folded(
        [("step", "step: one execution"), ("init", "init: one execution")]
    ) == ("step, init: one execution",)


def test_other_lines_keep_their_place():
    lines = [
        ("step", "step: 1 of 4 ranks"),
        ("init", "init: one execution"),
        ("step", "step: one execution"),
    ]
    assert folded(lines) == ("step: 1 of 4 ranks", "init, step: one execution")
