"""Tables fold what may be folded, never names."""

from io import StringIO

from rich.console import Console

from pgle.report.text import table


def lines(width: int) -> list[str]:
    rows = [("collective-permute-start.12", "nothing is independent of it")]
    console = Console(width=width, record=True, file=StringIO())
    console.print(table(("collective", "why"), rows, whole="collective"))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_all_on_one_line_where_it_fits() -> None:
    assert lines(100)[1] == "collective-permute-start.12  nothing is independent of it"


def test_a_name_stays_on_one_line() -> None:
    assert lines(45)[1].startswith("collective-permute-start.12  nothing")
    assert len(lines(45)) == 4
