"""The library as tools of the Model Context Protocol: `pgle mcp` serves them on stdin and stdout
(extra ``mcp``).

Each call runs in its own process, which also checks the arguments. So calls run in parallel and
report their phases. A cancelled call ends at once, with the compilers that it started.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, getdoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pgle import __version__
from pgle.api import known, looks, predictions, profiles, steps
from pgle.api.answer import Answer
from pgle.errors import UserError, shell_code, shown
from pgle.files import Json
from pgle.run.directory.directory import RunDirectory, new_answer
from pgle.run.process.process import end_with_parent, ended
from pgle.run.scale import are_modules

if TYPE_CHECKING:
    import mcp.types as types
    from anyio import CapacityLimiter
    from anyio.abc import ByteReceiveStream, Process

SAY_S = 1.0  # seconds between two lines about what a call is doing
GRACE_S = 5.0  # seconds that a cancelled call has to end
#: seconds that all calls have to end after a signal ends the server
SIGNAL_GRACE_S = 0.5
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
MOST_CALLS = 8  # calls that run at once; others wait
MOST_PATHS = 256  # most paths of a call; one folder names all its ranks
MOST_ENTRIES = 100_000
"""Most files and folders of a call that are searched for links. A run directory has a few
thousand.
"""
LINE_BYTES = 1 << 16  # longest line about what a call is doing
#: most bytes of an answer's object, because an agent reads all of it
MOST_BYTES = 50_000
#: most entries in each list of a larger object; halved until the object fits
MOST_ENTRIES_OF_LISTS = 512
LOCAL = (
    "output",
    "force",
    "cached",
    "complete",
    "quiet_s",
    "executor",
)
"""Parameters that a tool lacks: those of commands, and those that write or open a connection."""
WRITES = {"dump", "file", "files", "dir", "directory", "path", "to", "from", "results"}
"""Words in the names of XLA flags that name a file."""
STARTS = "starts a program, and this server starts none"
WITH_PROGRAMS = "start it with: pgle mcp --programs FOLDER"
STEP = "step"
PROGRAM = "program"
"""Formats of an argument. `PROGRAM` takes modules or the words of a program. `STEP` takes a module,
a folder or a run directory, and starts nothing.
"""


TOOLS: Mapping[str, Callable[..., Answer[Any]]] = {
    "folder": known.folder,
    "analyze": looks.analyze,
    "verify": profiles.verify,
    "confirm": looks.confirm,
    "compare": steps.compare,
    "predict": predictions.predict,
    "rehearse": predictions.rehearse,
    "flags_explain": known.flags_explain,
    "tune": predictions.tune,
    "scale": predictions.scale,
    "advise": predictions.advise,
    "ranks": looks.ranks,
}
_PATH = {"type": "string", "format": "path"}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_SEVERAL = {"type": ["array", "string"], "minItems": 1}
_WORDS = {**_TEXTS, **_SEVERAL}
_PROGRAM = {**_WORDS, "format": PROGRAM}
_PATHS = {**_SEVERAL, "items": _PATH}
_KINDS: Mapping[str, Json] = {
    "StrPath": _PATH,
    "str": {"type": "string"},
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "Sequence[str]": _TEXTS,
    "Sequence[int]": {"type": "array", "items": {"type": "integer"}},
    "Mapping[str, Sequence[str]]": {"type": "object", "additionalProperties": _TEXTS},
    "Mapping[int, float]": {
        "type": "object",
        "propertyNames": {"pattern": "^[1-9][0-9]{0,8}$"},
        "additionalProperties": {"type": "number"},
    },
    "Paths": _PATHS,
    "Times": _PATHS,
    "Callable[..., Any] | StrPath | Sequence[str]": {**_WORDS, "format": STEP},
    "Build | StrPath | Sequence[str]": _PROGRAM,
    "StrPath | Sequence[str]": _PROGRAM,
}
"""JSON schemas by annotation."""


def arguments(tool: str) -> Json:
    """Return the JSON schema of a tool's arguments: its function's parameters, described by its
    docstring.
    """
    function = TOOLS[tool]
    words = dict(
        re.findall(
            r"^\s+(\w+): (.+?)(?=^\s+\w+: |^\s*$|\Z)",
            getdoc(function) or "",
            re.M | re.S,
        )
    )
    properties: dict[str, Any] = {}
    needed: list[str] = []
    for name, given in signature(function).parameters.items():
        kind = _KINDS.get(
            str(given.annotation).removeprefix("api.").removesuffix(" | None")
        )
        is_all = given.kind is Parameter.VAR_POSITIONAL
        if kind is None or is_all or name in LOCAL:
            continue
        meaning = " ".join(words.get(name, "").split())
        properties[name] = {**kind, "description": meaning}
        if given.default is Parameter.empty:
            needed.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


def checked(
    root: Path, tool: str, given: Json, programs: bool = False
) -> dict[str, Any]:
    """The arguments of a call, with paths relative to `root`.

    Raises `UserError` if a path is outside `root`, or if an argument starts a program and
    `programs` is false.
    """
    import jsonschema

    for name, value in given.items():
        if isinstance(value, list) and len(value) > MOST_PATHS:
            what = f"{len(value):,} values, and at most {MOST_PATHS} are taken"
            remedy = "name their folder, or call several times"
            raise UserError(what, where=name, remedy=remedy)
    schema = arguments(tool)
    try:
        jsonschema.validate(given, schema)
    except jsonschema.ValidationError as error:
        where = ".".join(map(str, error.absolute_path))
        raise UserError(error.message[:300], where=where or tool) from None
    paths = PathsInside(root)
    found = dict(given)
    for name, value in given.items():
        kind = schema["properties"][name]
        if kind.get("format") in (STEP, PROGRAM):
            found[name] = _of_words(paths, kind["format"], value, programs)
        elif "propertyNames" in kind:  # JSON has no numbers for keys
            found[name] = {int(key): item for key, item in value.items()}
        elif kind.get("format") == "path":
            found[name] = paths.relative(value)
        elif kind.get("items", {}).get("format") == "path":
            listed = [value] if isinstance(value, str) else value
            found[name] = [paths.relative(item) for item in listed]
    target = found.get("target", "")
    if "/" in target or is_file_in(root, target):
        found["target"] = paths.relative(target)
    step = found.get("step")
    if tool == "advise" and not programs and is_run(root, step):
        # it starts the program that the run directory records
        raise UserError(STARTS, where=shown(str(step)), remedy=WITH_PROGRAMS)
    for flag in found.get("flags", ()):
        name, _, value = flag.removeprefix("--").partition("=")
        if "/" in value or WRITES & set(name.split("_")):
            what = "names a file, which tools do not write"
            raise UserError(what, where=flag, remedy="use the command line")
    return found


def _of_words(
    paths: PathsInside, form: str, value: str | list[str], programs: bool
) -> str | list[str]:
    """Return modules by their names in the folder, or the words of a program. `checked` does the
    rest.
    """
    words = [value] if isinstance(value, str) else value
    if form == STEP and isinstance(value, str):
        return paths.relative(value)
    files = [Path(paths.root, word) for word in words if is_file_in(paths.root, word)]
    if len(files) == len(words) and are_modules(files):
        return [paths.relative(word) for word in words]
    if programs:
        return words
    raise UserError(STARTS, where=shown(" ".join(words)), remedy=WITH_PROGRAMS)


def is_run(root: Path, step: object) -> bool:
    """Whether a step is a run directory, which records a program."""
    if isinstance(step, list) and len(step) == 1:
        (step,) = step
    return isinstance(step, str) and RunDirectory(root / step).is_recorded


def is_file_in(root: Path, name: str) -> bool:
    """Whether a folder has a file of this name. A text that cannot be a file name gives False."""
    try:
        return (root / name).is_file()
    except (OSError, ValueError):
        return False


class PathsInside:
    """The paths of one call: each is in a folder, and together they hold at most `MOST_ENTRIES`
    files.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._entries_left = MOST_ENTRIES

    def relative(self, text: str) -> str:
        """Return a path relative to the folder, with links resolved. If it is a folder, no link in
        it may lead outside.
        """
        path = self._resolved(self.root / text, text)
        for link in self._links(path, text):
            self._resolved(link, text)
        return str(path.relative_to(self.root))

    def _resolved(self, path: Path, text: str) -> Path:
        """Return the real path; raise `UserError` if it is outside the folder. `text` is the path
        as given, for the error.
        """
        try:
            real = path.resolve()
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                real.stat()
        except (
            OSError,
            ValueError,
            RuntimeError,
        ):  # too long, a zero byte, links in a circle
            raise UserError(
                "is no path", where=shown(text), remedy="check the path"
            ) from None
        if not real.is_relative_to(self.root):
            raise UserError(
                "is outside the folder of this server",
                where=shown(text),
                remedy="name a path in the folder",
            )
        return real

    def _links(self, folder: Path, text: str) -> Iterator[Path]:
        """The links in a folder and below it."""
        waiting = [folder]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        self._count(text)
                        if entry.is_symlink():
                            yield Path(entry.path)
                        elif entry.is_dir():
                            waiting.append(Path(entry.path))
            except (
                OSError
            ):  # a file, or an unreadable folder, of which nothing is read later
                continue

    def _count(self, text: str) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise UserError(
                f"the paths of this call hold more than {MOST_ENTRIES:,} files",
                where=shown(text),
                remedy="name the files that matter",
            )


def starts_programs(tool: str) -> bool:
    """Whether a tool takes the words of a program."""
    kinds = arguments(tool)["properties"].values()
    return any(kind.get("format") in (STEP, PROGRAM) for kind in kinds)


def output_schema(tool: str) -> Json | None:
    """Return the JSON schema of a tool's answer, from docs/schemas in the package or in a
    checkout.
    """
    here = Path(__file__).parent
    name = f"pgle.{tool.partition('_')[0]}-1.json"
    for folder in (here / "schemas", here.parent / "docs/schemas"):
        if (folder / name).exists():
            found: Json = json.loads((folder / name).read_text("utf-8"))
            return found
    return None


@dataclass(frozen=True)
class Reply:
    """The answer of a call."""

    text: str  # the page, or what went wrong
    document: Any = None  # the object of the answer
    is_error: bool = False


class Calls:
    """The calls of a server that run now, each in a process of its own."""

    def __init__(self, root: Path, limit: CapacityLimiter, programs: bool) -> None:
        self._root = root
        self._limit = limit
        self._programs = programs
        self._running: set[Process] = set()

    async def answer(
        self, tool: str, given: Json, say: Callable[[float, str], Any]
    ) -> Reply:
        """Return the answer of one call. Its process ends if this is cancelled.

        `say` is awaited with the seconds since the start and the call's current phase.
        """
        async with self._limit:
            return await self._answer(tool, given, say)

    async def _answer(
        self, tool: str, given: Json, say: Callable[[float, str], Any]
    ) -> Reply:
        import anyio

        process = await anyio.open_process(
            [sys.executable, "-P", "-c", "from pgle.mcp import work; work()"],
            cwd=self._root,
            env={**os.environ, "COLUMNS": "160"},
            start_new_session=True,
        )
        self._running.add(process)
        answer = b""
        try:
            assert process.stdin is not None  # all three are pipes
            assert process.stdout is not None
            assert process.stderr is not None
            async with anyio.create_task_group() as group:
                group.start_soon(_heard, process.stderr, say)
                # a command line is seen by every user of the machine
                request = {
                    "root": str(self._root),
                    "tool": tool,
                    "arguments": given,
                    "programs": self._programs,
                }
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await process.stdin.send(json.dumps(request).encode())
                await process.stdin.aclose()
                answer = b"".join([piece async for piece in process.stdout])
                await process.wait()
                # processes that outlive a call may keep its stderr open
                group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _end([process], GRACE_S)  # when cancelled, it deletes its files
                self._running.discard(process)
        try:
            return Reply(**json.loads(answer))
        except ValueError:
            how = ended(shell_code(process.returncode or 0))
            return Reply(f"the call {how}", is_error=True)

    async def end(self) -> None:
        """End all calls and the processes that they started."""
        await _end(list(self._running), SIGNAL_GRACE_S)


async def _end(processes: list[Process], grace_s: float) -> None:
    """Ask processes to end. After `grace_s` seconds, kill those that still run, with their process
    groups.
    """
    import anyio

    for process in processes:
        with suppress(ProcessLookupError):
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
    with anyio.move_on_after(grace_s):
        for process in processes:
            await process.wait()
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _heard(stream: ByteReceiveStream, say: Callable[[float, str], Any]) -> None:
    """Pass on the lines in which a call reports its work. Other lines come from libraries."""
    import anyio

    since = anyio.current_time()
    rest = b""
    async for piece in stream:
        *lines, rest = (rest + piece).split(b"\n")
        rest = rest[-LINE_BYTES:]
        for line in lines:
            if line.startswith(b"pgle: "):
                what = line[:LINE_BYTES].decode(errors="replace").removeprefix("pgle: ")
                await say(anyio.current_time() - since, what)


def work() -> None:
    """Run one call: read the tool and its arguments from stdin, write the answer to stdout. It ends
    if its server ends.
    """
    from pgle.report import text as progress

    end_with_parent()
    request = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # keep the prints of libraries out of the answer
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        progress.is_shown, progress.LOG_S = True, SAY_S
        try:
            root = Path(request["root"])
            tool = request["tool"]
            asked = checked(root, tool, request["arguments"], request["programs"])
            found = _answered(tool, asked)
        except UserError as error:
            found = Reply(str(error), is_error=True)
        except KeyboardInterrupt:
            sys.exit(1)
        json.dump(vars(found), out)


def _answered(tool: str, asked: dict[str, Any]) -> Reply:
    # it writes a folder here by default, and tools write nothing here
    if tool == "tune":
        asked["output"] = new_answer()
    answer = TOOLS[tool](**asked)
    document, most = bounded(answer.document)
    text = str(answer)
    if most is not None:
        text += f"\nLists in the object have at most {most} entries"
    return Reply(text, document)


def bounded(document: Json) -> tuple[Any, int | None]:
    """Cut a document to `MOST_BYTES`. Also return how many entries its lists may have; None if it
    is whole.
    """
    found: Any = dict(document)
    most = None
    while len(json.dumps(found)) > MOST_BYTES and most != 0:
        most = MOST_ENTRIES_OF_LISTS if most is None else most // 2
        found = _cut(document, most)
    return found, most


def _cut(value: Any, most: int) -> Any:
    """Cut each list in a JSON value to so many entries."""
    if isinstance(value, Mapping):
        return {key: _cut(item, most) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(item, most) for item in value[:most]]
    return value


def serve(root: Path, *, programs: bool = False) -> None:
    """Serve the tools on stdin and stdout until the client disconnects.

    Args:
        root: the folder whose files they read.
        programs: whether they may start programs.
    """
    if not root.is_dir():
        raise UserError("no such folder", where=root, remedy="check the path")
    root = root.resolve()
    try:
        import anyio
        import mcp.types as types
        from mcp.server import Server
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise UserError(
            f"the MCP SDK cannot be imported ({error})",
            remedy="pip install 'mcp>=2'",
        ) from None

    def tool_of(name: str) -> types.Tool:
        may_start = programs and starts_programs(name)
        hints = types.ToolAnnotations(
            read_only_hint=not may_start, open_world_hint=may_start
        )
        return types.Tool(
            name=name,
            description=(getdoc(TOOLS[name]) or "").partition("\n\n")[0],
            input_schema=arguments(name),
            output_schema=output_schema(name),
            annotations=hints,
        )

    async def listed(*_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(map(tool_of, TOOLS)))

    async def called(
        context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        async def say(seconds: float, what: str) -> None:
            await context.session.report_progress(seconds, None, what)

        if params.name in TOOLS:
            made = await calls.answer(params.name, params.arguments or {}, say)
        else:
            known = ", ".join(TOOLS)
            text = f"no tool called {params.name!r}; there are {known}"
            made = Reply(text, is_error=True)
        content: Any = [types.TextContent(type="text", text=made.text)]
        return types.CallToolResult(
            content=content,
            structured_content=made.document or None,
            is_error=made.is_error,
        )

    async def end_at_signal() -> None:
        with anyio.open_signal_receiver(*_not_ignored()) as received:
            async for number in received:
                await calls.end()
                _exit(number)

    async def main() -> None:
        what = "traces, profiles, HLO, logs and step times of JAX programs on GPUs"
        about = f"Answers of pgle on the folder {root}: {what}."
        server = Server(
            "pgle",
            version=__version__,
            instructions=f"{about} Begin with the tool folder.",
            on_list_tools=listed,
            on_call_tool=called,
        )
        async with anyio.create_task_group() as group:
            group.start_soon(end_at_signal)
            async with stdio_server() as (incoming, outgoing):
                await server.run(
                    incoming, outgoing, server.create_initialization_options()
                )
            group.cancel_scope.cancel()

    calls = Calls(root, anyio.CapacityLimiter(MOST_CALLS), programs)
    anyio.run(main)


def _not_ignored() -> list[signal.Signals]:
    """Return the signals that end this server. ``nohup`` makes it ignore some."""
    return [
        number for number in ENDING if signal.getsignal(number) is not signal.SIG_IGN
    ]


def _exit(number: signal.Signals) -> NoReturn:
    """Exit at once. Otherwise the interpreter would wait for an SDK thread that waits for the
    client's next line.
    """
    with suppress(OSError):
        os.write(2, f"pgle: ended by {number.name}\n".encode())
    os._exit(shell_code(-number))
