"""The pages of the site that are made from the code: commands, settings; and pages from outside docs/."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File

from pgle.cli import main
from pgle.xla.flags.catalogue import catalogue

ROOT = Path(__file__).parents[1]
WIDTH = 80
"""Columns of a block of code on a page."""
OUTSIDE = {
    "index.md": "README.md", "changelog.md": "CHANGELOG.md", "contributing.md": "CONTRIBUTING.md",
    "benchmarks.md": "benchmarks/README.md", "nsys.md": "benchmarks/nsys.md",
}  # fmt: skip


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; the index of the folder gives way to the README."""
    readme = files.get_file_from_path("README.md")
    if readme is not None:
        files.remove(readme)
    pages = {
        name: _moved((ROOT / source).read_text()) for name, source in OUTSIDE.items()
    }
    for name, text in {
        **pages,
        "commands.md": commands(),
        "settings.md": settings(),
    }.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that lead out of docs/ in the repository."""
    text = markdown.replace("](../../benchmarks/README.md)", "](../benchmarks.md)")
    return text.replace("](../benchmarks/README.md)", "](benchmarks.md)")


def _moved(text: str) -> str:
    """Links of a page outside docs/ as those of one in it."""
    text = (
        text.replace("](../docs/", "](")
        .replace("](../README.md)", "](index.md)")
        .replace("](docs/", "](")
        .replace("](README.md)", "](index.md)")
        .replace("](schemas/)", "](schemas/README.md)")
        .replace("](evidence/)", "](evidence/rehearse.md)")
    )
    text = text.replace("](benchmarks/)", "](benchmarks.md)").replace(
        "](benchmarks/README.md)", "](benchmarks.md)"
    )
    for name in ("NOTICE", "LICENSE"):
        text = text.replace(f"]({name})", "](index.md)")
    return text.replace("](CHANGELOG.md)", "](changelog.md)").replace(
        "](CONTRIBUTING.md)", "](contributing.md)"
    )


def commands() -> str:
    """`--help` of every command."""
    parts = ["# Commands\n\nAs `pgle COMMAND --help` prints them.\n"]
    top = click.Context(
        main.group,
        info_name="pgle",
        terminal_width=WIDTH,
        **main.group.context_settings,
    )
    for group, names in main.GROUPS.items():
        parts.append(f"\n## {group}\n")
        for name in names:
            command = main.group.get_command(top, name)
            assert command is not None
            shown = click.Context(command, info_name=name, parent=top)
            leaves = [shown]
            if isinstance(command, click.Group):
                leaves = [
                    click.Context(leaf, info_name=inner, parent=shown)
                    for inner, leaf in command.commands.items()
                ]
            parts += (
                f"\n### {leaf.command_path}\n\n```text\n{leaf.get_help()}\n```\n"
                for leaf in leaves
            )
    return "".join(parts)


def settings() -> str:
    """The catalogue of flags and variables."""
    rows = [
        f"| `{item.name}` | {item.reader} | {item.meaning} |".replace("\n", " ")
        for item in sorted(catalogue().values(), key=lambda item: item.name)
    ]
    head = "# Settings that pgle explains\n\n`pgle flags explain NAME` says more: defaults by release, traps, sources.\n\n"
    return (
        head + "| name | read by | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )
