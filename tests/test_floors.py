"""Imports only look down: cli, mcp and api, report, run, analyze, …, xla, then the ground.

Every module of pgle has its floor in `STOREYS`. A new one without a floor is an error, not a ground
floor.
"""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from house_style import parsed, syntax_nodes

import pgle
from pgle.cli.main import GROUPS

ROOT = Path(pgle.__file__).parent
STOREYS = (
    "errors checks files masking next worth",
    "requests",
    "xla",
    "trace",
    "steps",
    "costs",
    "schedule",
    "account",
    "tune",
    "scale releases",
    "analyze",
    "run mission",
    "report",
    "api",
    "profiled mcp pytest_plugin",
    "cli",
    "__main__ notebook",
)
FLOORS = {name: floor for floor, names in enumerate(STOREYS) for name in names.split()}
APART = {
    "workloads": {"jax"},
    "__init__": {"pgle.api", "pgle.errors", "pgle.profiled", "pgle.notebook"},
}
"""Modules on no floor: the first runs inside a user's process, the second lists the library. Both
import only these.
"""
PURE = (
    "requests",
    "steps",
    "analyze",
    "scale",
    "releases",
    "tune",
    "account",
    "schedule",
    "costs",
    "trace",
    "xla",
)
IMPURE_IMPORTS = {"click", "rich", "subprocess", "jax"}
MOST_NODES = 3500  # statements and expressions of a file, annotations left out
ROOMS = {
    "run": (
        "directory",
        "ask",
        "process hook compiler",
        "inputs target",
        "written",
        "convert",
        "history rounds schedule_evidence",
        "coverage confirm compare",
        "timed",
        "predict",
        "capture",
        "stages",
    ),
    "report": (
        "text",
        "page scene",
        "timeline layers charts",
        "measured_timeline",
        "chrome_trace pictures",
        "account",
        "next_in_run",
        "next_steps",
        "compare confirm history flags start control schedules",
        "profiles traces step_sections step_differences",
        "conversions verify analyze predict rehearse scale_control",
        "tune scale_account",
        "scale_advice",
        "scale",
        "stages report",
    ),
}
"""Rooms and files of a floor from the ground up; what is not in the list stands on top."""
PRIVATE = ("jax._src", "jaxlib._")
PRIVATE_AT = ("run/ask/jax_private.py", "run/hook/hook_site/pgle_hook/jax_private.py")


@cache
def imports(path: Path) -> frozenset[str]:
    return imported_names(parsed(path))


def imported_names(module: ast.Module) -> frozenset[str]:
    """All modules that are imported, and the names that are imported from modules."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {
                node.module,
                *(f"{node.module}.{alias.name}" for alias in node.names),
            }
    return frozenset(found)


def below(path: Path) -> str:
    return str(path.relative_to(ROOT))


def top_name(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def floor_of(path: Path) -> int:
    return FLOORS[top_name(path)]


EVERYTHING = sorted(path for path in ROOT.rglob("*.py") if "_pb2" not in path.name)
SOURCES = [path for path in EVERYTHING if top_name(path) in FLOORS]
NO_MODULE = {"__version__"}  # names that pgle itself defines


def test_every_module_has_a_floor() -> None:
    assert {top_name(path) for path in EVERYTHING} == FLOORS.keys() | APART.keys()


@pytest.mark.parametrize("name", APART)
def test_modules_on_no_floor_import_only_what_is_listed(name: str) -> None:
    found = imports(ROOT / f"{name}.py")
    ours = {module for module in found if module.partition(".")[0] in {"pgle", "jax"}}
    listed = APART[name]
    assert {module for module in ours if not _is_listed(module, listed)} <= {"pgle"}


def _is_listed(module: str, listed: set[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in listed)


def upward(path: Path, names: frozenset[str]) -> list[str]:
    """The imports of a file that look up, or at a module of pgle that has no floor."""
    ours = [name.split(".")[1] for name in names if name.startswith("pgle.")]
    highest = floor_of(path)
    return sorted(
        name
        for name in ours
        if name not in NO_MODULE and FLOORS.get(name, 99) > highest
    )


def test_imports_only_look_down() -> None:
    up = {below(path): upward(path, imports(path)) for path in SOURCES}
    assert {path: names for path, names in up.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from pgle.api.answer import Answer",
        "from pgle import mcp",
        "import pgle.profiled",
        "from pgle.workloads import main",
    ],
)
def test_an_import_of_the_top_or_of_no_floor_is_found(line: str) -> None:
    names = imported_names(ast.parse(line))
    assert upward(ROOT / "xla/flags/text.py", names) != []


def test_no_file_imports_itself_by_way_of_others() -> None:
    files = [path for path in SOURCES if path.name != "__init__.py"]
    names = {f"pgle.{below(path)[:-3].replace('/', '.')}": path for path in files}
    TopologicalSorter(
        {name: imports(path) & names.keys() for name, path in names.items()}
    ).prepare()


def test_below_the_answers_only_the_pipeline_knows_the_mission() -> None:
    """The front door is on the floor of `run/`: it calls the rooms, and only the one on top calls it."""
    below_report = [path for path in SOURCES if floor_of(path) <= FLOORS["mission"]]
    knowing = {below(path) for path in below_report if "pgle.mission" in imports(path)}
    assert knowing == {"run/stages/pipeline.py"}


@pytest.mark.parametrize("floor", ROOMS)
def test_rooms_only_look_down(floor: str) -> None:
    order = {
        name: place
        for place, names in enumerate(ROOMS[floor])
        for name in names.split()
    }
    files = [
        path
        for path in SOURCES
        if below(path).startswith(f"{floor}/") and "hook_site" not in path.parts
    ]
    arrows = {
        (
            path.relative_to(ROOT / floor).parts[0].removesuffix(".py"),
            name.split(".")[2],
            below(path),
        )
        for path in files
        for name in imports(path)
        if name.startswith(f"pgle.{floor}.")
    }
    assert [
        f"{path} imports {target}"
        for room, target, path in arrows
        if order.get(target, 99) > order.get(room, 99)
    ] == []
    graph: dict[str, set[str]] = {}
    for room, target, _ in arrows:
        graph.setdefault(room, set()).update({target} - {room})
    TopologicalSorter(graph).prepare()


def test_renderers_know_the_page_and_no_result() -> None:
    """They import neither one another nor anything that a page is made of."""
    for path in (ROOT / "report/page").glob("*.py"):
        names = [name for name in imports(path) if name.startswith("pgle.")]
        assert {
            name.split(".")[3] for name in names if name.startswith("pgle.report.page.")
        } <= {
            "value",
            "figures",
        }
        assert {FLOORS.get(name.split(".")[1], 0) for name in names} <= {
            0,
            FLOORS["report"],
        }, path


def test_pure_floors_stay_pure() -> None:
    pure = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in PURE]
    assert [
        (below(path), name)
        for path in pure
        for name in imports(path)
        if name.split(".")[0] in IMPURE_IMPORTS
    ] == []


def test_pure_floors_name_no_command_as_text() -> None:
    """Commands in their remedies are values of `pgle.next`, worded and quoted there. Requests hold
    the help of options.
    """
    commands = "|".join(name for names in GROUPS.values() for name in names)
    typed = re.compile(rf"(?<![\w./-])pgle (?:{commands})\b")
    floors = set(PURE) - {"requests"}
    pure = [path for path in SOURCES if path.relative_to(ROOT).parts[0] in floors]
    assert [
        (below(path), node.value)
        for path in pure
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and typed.search(node.value)
    ] == []


def test_the_command_list_imports_no_command() -> None:
    names = imports(ROOT / "cli" / "main.py")
    assert not any(name.startswith("pgle.cli.") for name in names)


def test_a_file_is_read_in_one_sitting() -> None:
    nodes = {below(path): syntax_nodes(parsed(path)) for path in SOURCES}
    assert {path: count for path, count in nodes.items() if count > MOST_NODES} == {}
