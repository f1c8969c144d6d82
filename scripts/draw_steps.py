"""Draw the bars of the README: `pgle rehearse … --json | python scripts/draw_steps.py >
docs/rehearsal.svg`.
"""

from __future__ import annotations

import json
import sys
from xml.sax.saxutils import escape

WIDTH, LEFT, BAR, ROW, TOP = 860, 170, 30, 52, 34
NAMES = {
    "default": "XLA's default",
    "baseline": "scheduler on",
    "profiled": "+ measured costs",
}
STYLE = """
text{font:15px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:#1b1f24}
.n{font-weight:600}.s{fill:#57606a;font-size:13px}
.c{fill:#4174b4}.e{fill:#c0390b}.i{fill:#d3d8de}
@media(prefers-color-scheme:dark){text{fill:#e6e9ed}.s{fill:#a3adb8}.c{fill:#8fb8ea}.e{fill:#ff8a5c}.i{fill:#3b444e}}
"""


def main() -> None:
    """Read ``pgle.rehearse/1`` from stdin, write SVG to stdout."""
    found = json.load(sys.stdin)
    sides = [(label, found[name]) for name, label in NAMES.items() if found.get(name)]
    first, scale = (
        sides[0][1]["step_us"],
        (WIDTH - LEFT - 160) / max(side["step_us"] for _, side in sides),
    )
    rows = []
    for place, (label, side) in enumerate(sides):
        y, step, exposed = TOP + place * ROW, side["step_us"], side["exposed_us"]
        change = (
            f" (−{1 - step / first:.1%})".replace("%", " %") if step < first else ""
        )
        rows.append(
            f'<text x="{LEFT - 12}" y="{y + 20}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="c" x="{LEFT}" y="{y}" width="{(step - exposed) * scale:.1f}" height="{BAR}" rx="3"/>'
            f'<rect class="e" x="{LEFT + (step - exposed) * scale:.1f}" y="{y}" width="{exposed * scale:.1f}" '
            f'height="{BAR}"/>'
            f'<text class="n" x="{LEFT + step * scale + 10:.1f}" y="{y + 20}">{step / 1e3:.2f} ms{change}</text>'
        )
    height = TOP + len(sides) * ROW + 26
    what = f"One training step, {found['devices']} × {found['target']}, predicted from {found['costs_are']} costs"
    legend = (
        f'<rect class="c" x="{LEFT}" y="{height - 22}" width="12" height="12"/>'
        f'<text class="s" x="{LEFT + 18}" y="{height - 11}">compute</text>'
        f'<rect class="e" x="{LEFT + 100}" y="{height - 22}" width="12" height="12"/>'
        f'<text class="s" x="{LEFT + 118}" y="{height - 11}">exposed communication: the GPU waits</text>'
    )
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(what)}">'
        f"<style>{STYLE}</style>"
        f'<text class="s" x="{LEFT}" y="20">{escape(what)}</text>{"".join(rows)}{legend}</svg>'
    )


if __name__ == "__main__":
    main()
