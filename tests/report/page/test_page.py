"""A page: escaped, with no way to the network, the same bytes for the same values, readable
colours.
"""

import base64
import hashlib
import re
from dataclasses import replace

import pytest
from scenes import HALF_EXPOSED, timeline

from pgle.next import Next, Sentence, Way, WayEnd, to_way
from pgle.report.page import plain
from pgle.report.page.figures import Unit
from pgle.report.page.html import DARK, LIGHT, render
from pgle.report.page.plain import markdown
from pgle.report.page.value import Chart, Column, Page, Prose, Section, table
from pgle.report.schedules import Schedule, sections
from pgle.report.timeline import tiles
from pgle.schedule.simulate import Breakdown, Stream

PLAIN = Page("t", (), "Yes")
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202etxt.exe"


TEXTS = (
    *((text, "paper") for text in ("ink", "soft", "accent", "mark", "good", "bad")),
    *((text, "raised") for text in ("ink", "soft", "accent", "mark", "good", "bad")),
    *(("in-bar", bar) for bar in ("compute", "matmul", "exposed", "copy")),
    ("ink", "hidden"),
    ("ink", "idle"),
    ("exposed", "paper"),
)  # fmt: skip
"""Which text stands on which ground; each pair has a contrast of at least 4.5 in both palettes
(WCAG 2.2, 1.4.3).
"""


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours ``#rrggbb``, 1 to 21 (WCAG 2.2, relative luminance)."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("row", [("x",), ("x", 1.0, "z"), ()])
def test_a_row_of_a_table_has_a_cell_for_each_head(
    row: tuple[str | float, ...],
) -> None:
    with pytest.raises(ValueError, match="rows of other lengths than the heads"):
        table(("name", Column("time", Unit.TIME)), [("x", 1.0), row])


def page(name: str = "ag-start") -> Page:
    of = timeline(
        (name, "all-gather", Stream.COMMUNICATION, 0, 40),
        ("dot", "matmul", Stream.COMPUTE, 0, 20),
    )
    return Page(
        name,
        (name,),
        name,
        sections=sections([Schedule(name, of, "estimated")], (), ("", "")),
        way=Way((name,)),
    )


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), TEXTS)
def test_every_text_stands_out_from_its_ground(
    colours: dict[str, str], text: str, ground: str
) -> None:
    assert contrast(colours[text], colours[ground]) >= 4.5


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(
        4.54, abs=0.01
    )  # the guidelines' own example


def test_the_page_compares_the_schedules() -> None:
    schedules = [
        Schedule(label, HALF_EXPOSED, "measured") for label in ("A & B", "new")
    ]
    html = render(Page("A & B", (), "Yes", sections=sections(schedules, (), ("", ""))))
    assert "<title>A &amp; B</title>" in html
    row = re.search(r"<td class=\"\">A &amp; B</td>.*?</tr>", html)
    assert row is not None and '<td class="n exposed">20</td>' in row[0]


def test_hostile_names_are_text_in_the_page() -> None:
    html = render(page(HOSTILE))
    assert "<script>alert" not in html and "<img" not in html
    assert "\x1b" not in html and "\u202e" not in html


def test_the_page_s_policy_lets_nothing_load_and_one_script_run() -> None:
    html = render(page())
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    script = re.search(r"<script>(.*)</script>\n</body>", html, re.DOTALL)
    assert policy and script
    allowed = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert (
        policy[1]
        .replace("&#39;", "'")
        .startswith(f"default-src 'none'; script-src 'sha256-{allowed}';")
    )


def test_the_page_refers_to_nothing_outside() -> None:
    html = render(page()).replace(
        'xmlns="http://www.w3.org/2000/svg"', ""
    )  # a name, not an address
    assert not re.search(r'\b(src|href)="|url\((?!#)|@import|https?://', html)


def test_the_same_page_gives_the_same_bytes() -> None:
    assert render(page()) == render(page())


def test_quotes_in_the_page_s_style_stay_quotes() -> None:
    assert 'system-ui,-apple-system,"Segoe UI"' in render(page())


def sections_of(count: int) -> tuple[Section, ...]:
    names = (f"key{number}" for number in range(count))
    return tuple(Section(name, name, (Prose("text"),)) for name in names)


def test_sections_read_from_above_to_below_in_two_columns() -> None:
    written = render(replace(PLAIN, sections=sections_of(3)))
    first, second = written.split('<div class="details">')[1].split("</div>\n<div>")
    assert [f'id="s-key{number}"' in first for number in range(3)] == [
        True,
        True,
        False,
    ]
    assert 'id="s-key2"' in second


def test_rows_that_are_parts_of_another_are_indented() -> None:
    parts = table(
        ("", Column("time", Unit.TIME)), [("exposed", 5000.0), ("  all-gather", 5000.0)]
    )
    page = replace(PLAIN, table=parts)
    assert '<td class="child ">  all-gather</td>' in render(page)
    assert "| &nbsp;&nbsp;all-gather | 5.00 |" in markdown(page)


def test_what_is_folded_of_a_long_table_scrolls_inside() -> None:
    rows = table(("name",), [(f"row{number}",) for number in range(40)])
    page = replace(PLAIN, sections=(Section("k", "h", (rows,)),))
    rest = render(page).split('class="wide rest"')[1]
    assert "row12" in rest and "row11" not in rest


def test_each_tile_has_a_bar_for_each_side() -> None:
    before = Breakdown(80, 15, 0, 5, 100, 30, 0)
    after = Breakdown(80, 0, 0, 0, 80, 15, 0)
    found = tiles((("before", before), ("after", after)))
    assert [len(tile.bars) for tile in found] == [2, 2, 2]
    assert found[1].bars[0].text == "15.0 % of the step"
    assert found[1].bars[0].parts == (("exposed", 0.15),)


def test_charts_side_by_side_have_the_whole_width() -> None:
    charts = (Chart("<svg/>", "one"), Chart("<svg/>", "two"))
    sections = (*sections_of(2), Section("wide", "wide", charts))
    written = render(replace(PLAIN, sections=sections))
    places = [written.index(f'id="s-{key}"') for key in ("wide", "key0", "key1")]
    assert places == sorted(places)


@pytest.mark.parametrize("end", WayEnd)
def test_every_renderer_heads_the_end_of_a_way_by_what_it_is(end: WayEnd) -> None:
    ended = replace(PLAIN, way=Way(done="say so", end=end))
    assert f"<h2>{end}</h2><p>say so</p>" in render(ended)
    assert f"\n\n{end}: say so\n" in markdown(ended)


def test_a_command_that_ends_a_long_sentence_has_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = Next.of("run", "--", "python", *["train.py"] * 20)
    plain.show(replace(PLAIN, way=to_way([Sentence.edit("it, then measure: ", run)])))
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "Now edit: it, then measure:",
        f"  {run}",
    ]
