"""Imports only look down: cli, report, run, steps, analyze, tune, schedule, costs, trace, xla, then the ground."""

import ast
from pathlib import Path

import pytest

import pgle

ROOT = Path(pgle.__file__).parent
STOREYS = (
    "errors files masking",
    "xla",
    "trace",
    "costs",
    "schedule",
    "tune",
    "analyze",
    "steps",
    "run",
    "report",
    "cli",
)
FLOORS = {name: floor for floor, names in enumerate(STOREYS) for name in names.split()}
PURE = ("steps", "analyze", "tune", "schedule", "costs", "trace", "xla")
IMPURE_IMPORTS = {"click", "rich", "subprocess", "jax"}
ROOMY = ("costs", "xla", "run")
DOZEN = 12
PRIVATE = ("jax._src", "jaxlib._")
PRIVATE_AT = ("run/ask/jax_private/", "run/launch/hook_site/pgle_hook/jax_private.py")


def imports(path: Path, *, top_level_only: bool = False) -> set[str]:
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def sources() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT and "_pb2" not in path.name)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_only_look_down(path: Path) -> None:
    own = FLOORS.get(path.relative_to(ROOT).parts[0], 99)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "pgle" or len(parts) < 2 or parts[1] not in FLOORS:
            continue
        assert FLOORS[parts[1]] <= own, f"{path.name} on floor {own} imports {name}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pure_floors_stay_pure(path: Path) -> None:
    if path.relative_to(ROOT).parts[0] in PURE:
        assert not {name.split(".")[0] for name in imports(path)} & IMPURE_IMPORTS


def test_the_command_list_imports_no_command() -> None:
    names = imports(ROOT / "cli" / "main.py")
    assert not any(name.startswith("pgle.cli.") for name in names)


@pytest.mark.parametrize(
    "room", sorted({path.parent for path in sources()}), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_room_holds_at_most_a_dozen_files(room: Path) -> None:
    if room != ROOT and room.relative_to(ROOT).parts[0] in ROOMY:
        assert len([path for path in sources() if path.parent == room and path.name != "__init__.py"]) <= DOZEN


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_private_parts_of_jax_are_named_in_two_places(path: Path) -> None:
    if not str(path.relative_to(ROOT)).startswith(PRIVATE_AT):
        words = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
        named = imports(path) | {word for word in words if isinstance(word, str) and " " not in word}
        assert not [name for name in named if name.startswith(PRIVATE)]
