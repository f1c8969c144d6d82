"""The timeline in a real browser: what it draws is true, the keyboard reaches everything, hostile
names stay text.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, Page, browser
from scenes import FOLDED, HALF_EXPOSED, timeline

from pgle.report.page import html
from pgle.report.page.value import Advice, Column, Saving, Table
from pgle.report.page.value import Page as Answer
from pgle.report.page.value import Section as Timed
from pgle.report.schedules import Schedule, sections
from pgle.report.timeline import panel_of
from pgle.report.timeline import timeline as part
from pgle.schedule.simulate import Stream, Timeline

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]
HOSTILE = "</script><script>document.title='hacked'</script>"
VIEW = "document.getElementById('timeline').view"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Page]:
    with browser() as page:
        yield page


@pytest.fixture
def show(chromium: Page, tmp_path: Path) -> Any:
    def open_page(*timelines: Timeline, **options: Any) -> Page:
        schedules = [
            Schedule(f"schedule {number}", item, "estimated")
            for number, item in enumerate(timelines)
        ]
        path = tmp_path / "page.html"
        path.write_text(
            html.render(
                Answer("test", (), "Yes", sections=sections(schedules, (), ("", "")))
            )
        )
        chromium.open(path, **options)
        return chromium

    return open_page


def span(page: Page) -> list[float]:
    found: list[float] = page.run(f"[{VIEW}.state.from, {VIEW}.state.to]")
    return found


def canvas(page: Page) -> tuple[float, float, float, float]:
    box = page.run("document.querySelector('canvas').getBoundingClientRect().toJSON()")
    return box["left"], box["top"], box["right"], box["bottom"]


def picked(page: Page) -> str:
    return str(page.run("document.querySelector('.picked').innerText"))


def test_the_parts_that_it_draws_are_those_of_the_timeline(show: Any) -> None:
    said = show(HALF_EXPOSED).run(
        "document.querySelector('canvas').getAttribute('aria-label')"
    )
    assert (
        "compute 80 µs, exposed communication 20 µs, exposed copies 0 ns of 100 µs"
        in said
    )


def test_unfolded_loops_are_drawn_iteration_by_iteration(show: Any) -> None:
    page = show(FOLDED)
    lane = f"{VIEW}.state.panels[0].lanes.find(lane => lane.label === 'communication')"
    assert page.run(f"[...{lane}.times.start]") == [10_000, 30_000, 50_000, 70_000]
    assert page.run(f"[...{lane}.times.end]") == [20_000, 40_000, 60_000, 80_000]


def test_a_page_opens_on_the_part_of_time_that_it_is_about(
    chromium: Page, tmp_path: Path
) -> None:
    moving = part([panel_of("one step of many", HALF_EXPOSED)], first_us=40)
    (tmp_path / "page.html").write_text(
        html.render(
            Answer("test", (), "Yes", sections=(Timed("timeline", "Step", (moving,)),))
        )
    )
    chromium.open(tmp_path / "page.html")
    assert span(chromium) == [0, 40_000]
    chromium.run("document.querySelector('canvas').focus()")
    chromium.press("Home")
    assert span(chromium) == [0, 100_000]


def test_folded_loops_come_back_by_a_key(show: Any) -> None:
    page = show(FOLDED)
    page.run("document.querySelector('canvas').focus()")
    page.press("l")
    assert page.run(f"[...{VIEW}.state.panels[0].lanes[1].times.start]") == [10_000]


def test_keys_zoom_move_step_and_search(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.run("document.querySelector('canvas').focus()")
    page.press("+")
    assert span(page) == [25_000, 75_000]
    page.press("ArrowRight")
    assert span(page) == [37_500, 87_500]
    page.press("Home")
    assert span(page) == [0, 100_000]
    page.press("]")
    assert "dot" in picked(page)
    page.press("/")
    for letter in "gather":
        page.press(letter)
    page.press("Enter")
    assert "ag-start" in picked(page) and "20 µs (50 %)" in picked(page)


def test_a_row_of_a_table_leads_to_its_bar(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.run("document.querySelector('tr[data-find=\"ag-start\"] button').click()")
    page.frame()
    assert "ag-start" in picked(page)
    assert span(page) == [0, 100_000]
    assert page.run("document.querySelector('tr.chosen').dataset.find") == "ag-start"


def test_a_bar_leads_to_its_row(show: Any) -> None:
    page = show(HALF_EXPOSED)
    left, _, _, bottom = canvas(page)
    page.click(left + 200, bottom - 25)
    assert "ag-start" in picked(page)
    page.run("document.querySelector('.picked button:last-child').click()")
    assert page.run("document.activeElement.textContent") == "ag-start"


def test_the_wheel_with_control_zooms_where_the_pointer_is(show: Any) -> None:
    page = show(HALF_EXPOSED)
    left, top, right, _ = canvas(page)
    page.mouse(
        "mouseWheel",
        (left + 136 + right) / 2,
        top + 60,
        deltaX=0,
        deltaY=-200,
        modifiers=2,
    )
    page.frame()
    start, end = span(page)
    assert end - start < 70_000 and (start + end) / 2 == pytest.approx(50_000, rel=0.01)


def test_hostile_names_are_shown_and_not_run(show: Any) -> None:
    of = timeline(
        (HOSTILE, "all-gather", Stream.COMMUNICATION, 0, 40),
        ("dot", "matmul", Stream.COMPUTE, 0, 20),
    )
    page = show(of)
    page.run("document.querySelector('canvas').focus()")
    page.press("]")
    page.run("document.querySelector('tr[data-find] button').click()")
    page.frame()
    assert HOSTILE in picked(page)
    assert page.run("document.title") == "test"


def test_nothing_is_asked_of_the_network_and_no_error_is_logged(show: Any) -> None:
    page = show(HALF_EXPOSED)
    asked = [
        event["params"]["request"]["url"]
        for event in page.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    assert all(url.startswith("file:") for url in asked)
    assert not [
        event
        for event in page.events
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded")
    ]


def test_a_script_that_is_not_the_page_s_own_does_not_run(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.run(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.foreign = 1'}))"
    )
    assert page.run("window.foreign === undefined")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_fits_a_phone(show: Any, dark: bool) -> None:
    page = show(HALF_EXPOSED, FOLDED, width=390, height=844, dark=dark)
    assert page.run("document.documentElement.scrollWidth") == 390


def test_keys_work_without_focus_but_not_while_text_is_typed(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.press("+")
    assert span(page) == [25_000, 75_000]
    page.press("/")
    page.press("-")
    assert span(page) == [25_000, 75_000]
    assert page.run("document.querySelector('input[type=search]').value") == "-"


def test_keys_that_scroll_a_page_stay_its_own(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.press("ArrowUp")
    assert span(page) == [0, 100_000]


IDLE = timeline(
    ("a", "fusion", Stream.COMPUTE, 0, 20), ("b", "fusion", Stream.COMPUTE, 60, 100)
)


def test_idle_time_can_be_pointed_at_and_chosen(show: Any) -> None:
    page = show(IDLE)
    left, top, right, _ = canvas(page)
    middle = left + 136 + (right - left - 136) * 0.4
    page.mouse("mouseMoved", middle, top + 30 + 46 + 5)
    page.frame()
    assert "idle 40 µs" in page.run("document.querySelector('.tip').innerText")
    page.click(middle, top + 30 + 46 + 5)
    assert "after a, before b" in picked(page)


def test_what_is_seen_and_chosen_stands_in_the_address(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.press("]")
    page.run("new Promise(done => setTimeout(done, 400))")
    address = page.run("location.hash")
    assert address == "#t=0.000000-0.100000ms&sel=dot"
    page.run("location.hash = '#t=0.01-0.02ms&sel=ag-start'")
    page.frame()
    assert span(page) == [10_000, 20_000]
    assert "ag-start" in picked(page)


def test_an_address_that_was_cut_is_ignored(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.run("location.hash = '#t=5-1ms&sel=%E0%A4%A'")
    page.frame()
    assert span(page) == [0, 100_000]


def test_a_drag_with_shift_sums_up_what_it_covers(show: Any) -> None:
    page = show(HALF_EXPOSED)
    left, top, right, _ = canvas(page)
    begin, end = left + 136, left + 136 + (right - left - 136) * 0.5
    for kind, x in (
        ("mousePressed", begin),
        ("mouseMoved", end),
        ("mouseReleased", end),
    ):
        page.mouse(
            kind, x, top + 120, button="left", buttons=1, modifiers=8, clickCount=1
        )
    page.frame()
    assert "compute 30 µs, exposed 20 µs" in picked(page)
    assert "ag-start 40 µs" in picked(page)
    assert span(page) == [0, 100_000]


def test_two_marks_measure(show: Any) -> None:
    page = show(HALF_EXPOSED)
    left, top, right, _ = canvas(page)
    for share in (0.2, 0.7):
        page.mouse("mouseMoved", left + 136 + (right - left - 136) * share, top + 60)
        page.press("m")
    first, last = page.run(f"{VIEW}.state.marks")
    assert last - first == pytest.approx(50_000, rel=0.01)


def test_a_stage_without_width_draws_nothing_and_logs_no_error(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.run("document.querySelector('.stage').style.width = '0px'")
    page.frame()
    page.run(f"{VIEW}.draw()")
    page.run("document.querySelector('.stage').style.width = ''")
    page.frame()
    assert not [
        event
        for event in page.events
        if event.get("method") == "Runtime.exceptionThrown"
    ]


def test_a_row_without_a_bar_is_no_link(chromium: Page, tmp_path: Path) -> None:
    table = Table(
        (Column("name"),),
        (("ag-start",), ("execution 0",)),
        find=("ag-start", "execution 0"),
    )
    parts = (part([panel_of("one", HALF_EXPOSED)]), table)
    (tmp_path / "page.html").write_text(
        html.render(
            Answer("test", (), "Yes", sections=(Timed("timeline", "Step", parts),))
        )
    )
    chromium.open(tmp_path / "page.html")
    assert chromium.run(
        "[...document.querySelectorAll('td button')].map(item => item.textContent)"
    ) == ["ag-start"]


def test_hidden_and_exposed_differ_in_luminance(show: Any) -> None:
    page = show(HALF_EXPOSED)
    styles = "getComputedStyle(document.querySelector('#timeline')).getPropertyValue"
    for dark in (False, True):
        page = show(HALF_EXPOSED, dark=dark)
        found = [
            page.run(f"{styles.replace('#timeline', '#timeline')}('--{name}').trim()")
            for name in ("hidden", "exposed")
        ]
        light = sorted(luminance(colour) for colour in found)
        assert (light[1] + 0.05) / (light[0] + 0.05) > 2.5


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_without_javascript_there_is_a_picture_of_text(tmp_path: Path) -> None:
    written = html.render(
        Answer(
            "test",
            (),
            "Yes",
            sections=(
                Timed("timeline", "Step", (part([panel_of("one", HALF_EXPOSED)]),)),
            ),
        )
    )
    still = written.partition("<noscript>")[2].partition("</noscript>")[0]
    assert "step 100 µs" in still and "exposed" in still and "█" in still


def test_the_name_of_a_bar_can_be_copied(show: Any) -> None:
    page = show(HALF_EXPOSED)
    page.press("]")
    page.run("document.querySelector('.picked button').click()")
    assert (
        page.run(
            "new Promise(done => setTimeout(() => done(document.querySelector('.picked button').innerText), 300))"
        )
        == "Copied"
    )


def test_an_action_leads_to_its_place_in_the_timeline(
    chromium: Page, tmp_path: Path
) -> None:
    action = Advice("Hide it", Saving(0.2, 0.2, 0.2), span_us=(20.0, 40.0))
    sections = (Timed("timeline", "Step", (part([panel_of("one", HALF_EXPOSED)]),)),)
    (tmp_path / "page.html").write_text(
        html.render(Answer("test", (), "Yes", actions=(action,), sections=sections))
    )
    chromium.open(tmp_path / "page.html")
    chromium.run("document.querySelector('li .seek').click()")
    chromium.frame()
    assert span(chromium) == [14_000, 46_000]


@pytest.mark.minutes
def test_forty_thousand_instructions_are_one_small_page_that_can_be_searched(
    show: Any, tmp_path: Path
) -> None:
    rows = [
        (f"loop_multiply_add_fusion.{i}", "fusion", Stream.COMPUTE, float(i), i + 0.9)
        for i in range(40_000)
    ]
    page = show(timeline(*rows))
    assert (tmp_path / "page.html").stat().st_size < 5_000_000
    page.run("document.querySelector('canvas').focus()")
    page.press("/")
    for letter in ".31415":
        page.press(letter)
    page.press("Enter")
    assert "loop_multiply_add_fusion.31415" in picked(page) and "31.41 ms" in picked(
        page
    )


def test_two_fingers_zoom(show: Any) -> None:
    page = show(HALF_EXPOSED, width=390, height=844)
    left, top, right, _ = canvas(page)
    middle = (left + right) / 2
    for kind, reach in (
        ("touchStart", 40),
        ("touchMove", 60),
        ("touchMove", 80),
        ("touchEnd", None),
    ):
        fingers = [] if reach is None else [{"x": middle - reach, "y": top + 60, "id": 0}, {"x": middle + reach, "y": top + 60, "id": 1}]  # fmt: skip # noqa: E501
        page.send("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)
    page.frame()
    start, end = span(page)
    assert end - start == pytest.approx(50_000, rel=0.05)


def test_a_heading_opens_and_closes_its_lanes(show: Any) -> None:
    page = show(HALF_EXPOSED)
    left, top, _, _ = canvas(page)
    page.click(left + 30, top + 45)
    assert page.run(f"{VIEW}.state.panels[0].open") is False


def test_light_and_dark_are_drawn_in_other_colours(show: Any) -> None:
    dot = "[...document.querySelector('canvas').getContext('2d').getImageData(3, 3, 1, 1).data]"
    assert show(HALF_EXPOSED, dark=False).run(dot)[:3] == [255, 255, 255]
    assert show(HALF_EXPOSED, dark=True).run(dot)[:3] == [0x12, 0x16, 0x1B]
