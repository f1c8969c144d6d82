"""Every colour of every picture and page, in light and dark: one per kind of activity; and how well texts stand out."""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "paper": "#ffffff", "raised": "#f6f7f9", "ink": "#1b1f24", "soft": "#57606a", "line": "#dfe3e8",
    "compute": "#4174b4", "matmul": "#26568f", "hidden": "#24785a", "exposed": "#c0390b", "copy": "#7355a6",
    "idle": "#d3d8de", "in-bar": "#ffffff", "mark": "#9a1f63", "accent": "#1f5fbf",
    "base": "#1f5fbf", "new": "#b3401a", "good": "#116329", "bad": "#a3123f",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "paper": "#12161b", "raised": "#1a2027", "ink": "#e6e9ed", "soft": "#a3adb8", "line": "#2c343d",
    "compute": "#8fb8ea", "matmul": "#5f98dd", "hidden": "#5fc498", "exposed": "#ff8a5c", "copy": "#bda2f0",
    "idle": "#3b444e", "in-bar": "#0b0f14", "mark": "#ff9ccb", "accent": "#7ab0ff",
    "base": "#7ab0ff", "new": "#ff9d70", "good": "#56d364", "bad": "#ff7d9b",
}  # fmt: skip

TEXTS: tuple[tuple[str, str], ...] = (
    *((text, "paper") for text in ("ink", "soft", "accent", "mark", "base", "new", "good", "bad")),
    *((text, "raised") for text in ("ink", "soft", "accent", "mark", "base", "new", "good", "bad")),
    *(("in-bar", bar) for bar in ("compute", "matmul", "hidden", "exposed", "copy")),
    ("ink", "idle"),
)  # fmt: skip
"""Which text stands on which ground; each pair has a contrast of at least 4.5 in both palettes (WCAG 2.2, 1.4.3)."""


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colours ``#rrggbb``, 1 to 21 (WCAG 2.2, relative luminance)."""
    high, low = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def variables(selector: str) -> str:
    """The palettes as custom properties of what `selector` selects, by the reader's system."""
    light, dark = ("".join(f"--{name}:{colour};" for name, colour in colours.items()) for colours in (LIGHT, DARK))
    return f"{selector}{{{light}}}\n@media (prefers-color-scheme:dark){{{selector}{{{dark}}}}}\n"
