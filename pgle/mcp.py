"""The library as tools of the Model Context Protocol: `pgle mcp` serves them on stdin and stdout
(extra ``mcp``).

A call runs in a process of its own. So calls run side by side, their phases are known, and one that
is cancelled ends at once, with the compilers that it started.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from inspect import Parameter, getdoc, signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pgle import __version__, api
from pgle.errors import UserError

if TYPE_CHECKING:
    import mcp.types as types

SAY_S = 1.0  # between two lines on what a call is doing
GRACE_S = 5.0  # that a cancelled call has to end
LOCAL = (
    "output",
    "force",
    "cached",
    "complete",
    "quiet_s",
)  # parameters of commands and of what writes
WRITES = {"dump", "file", "files", "dir", "directory", "path", "to", "from", "results"}
"""Words in the names of XLA flags that name a file."""


TOOLS: Mapping[str, Callable[..., api.Answer[Any]]] = {
    "folder": api.folder,
    "analyze": api.analyze,
    "verify": api.verify,
    "confirm": api.confirm,
    "compare": api.compare,
    "predict": api.predict,
    "rehearse": api.rehearse,
    "flags_explain": api.flags_explain,
}
_PATH = {"type": "string", "format": "path"}
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "StrPath": _PATH,
    "Callable[..., Any] | StrPath | Sequence[str]": _PATH,
    "str": {"type": "string"},
    "float": {"type": "number"},
    "int": {"type": "integer"},
    "bool": {"type": "boolean"},
    "Sequence[str]": {"type": "array", "items": {"type": "string"}},
    **{
        key: {"type": ["array", "string"], "items": _PATH, "minItems": 1}
        for key in ("Paths", "Times")
    },
}
"""JSON schemas of annotations."""


def arguments(tool: str) -> dict[str, Any]:
    """The JSON schema of a tool's arguments: the parameters of its function, in the words of its
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
    properties, needed = {}, []
    for name, given in signature(function).parameters.items():
        kind = _KINDS.get(
            str(given.annotation).removeprefix("api.").removesuffix(" | None")
        )
        if (
            kind is not None
            and given.kind is not Parameter.VAR_POSITIONAL
            and name not in LOCAL
        ):
            properties[name] = {
                **kind,
                "description": " ".join(words.get(name, "").split()),
            }
            needed += [name] if given.default is Parameter.empty else []
    return {
        "type": "object",
        "properties": properties,
        "required": needed,
        "additionalProperties": False,
    }


def checked(root: Path, tool: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call, with paths relative to `root`; raises `UserError` where they name
    something outside.
    """
    import jsonschema

    schema = arguments(tool)
    try:
        jsonschema.validate(given, schema)
    except jsonschema.ValidationError as error:
        where = ".".join(map(str, error.absolute_path))
        raise UserError(error.message[:300], where=where or tool) from None
    found = dict(given)
    for name, value in given.items():
        kind = schema["properties"][name]
        if kind.get("format") == "path":
            found[name] = inside(root, value)
        elif kind.get("items", {}).get("format") == "path":
            found[name] = [
                inside(root, item)
                for item in ([value] if isinstance(value, str) else value)
            ]
    if "/" in (target := found.get("target", "")) or (root / target).is_file():
        found["target"] = inside(root, target)
    for flag in found.get("flags", ()):
        name, _, value = flag.removeprefix("--").partition("=")
        if "/" in value or WRITES & set(name.split("_")):
            raise UserError(
                "names a file, which tools do not write",
                where=flag,
                remedy="use the command line",
            )
    return found


def inside(root: Path, text: str) -> str:
    """A path relative to `root`, by its real name; of a folder no link leads out of `root`
    either.
    """
    path = (root / text).resolve()
    links = (
        Path(top, name)
        for top, *names in os.walk(path)
        for name in (*names[0], *names[1])
    )
    out = next(
        (item for item in (path, *links) if not item.resolve().is_relative_to(root)),
        None,
    )
    if out is not None:
        raise UserError(
            "lies outside the folder of this server",
            where=text,
            remedy="name a path in the folder",
        )
    return str(path.relative_to(root))


def output_schema(tool: str) -> dict[str, Any] | None:
    """The JSON schema of a tool's answer, as docs/schemas has it: in the package, or in a
    checkout.
    """
    here, name = Path(__file__).parent, f"pgle.{tool.partition('_')[0]}-1.json"
    found = next(
        (
            path
            for path in (here / "schemas" / name, here.parent / "docs/schemas" / name)
            if path.exists()
        ),
        None,
    )
    return None if found is None else json.loads(found.read_text(encoding="utf-8"))


async def call(
    root: Path, tool: str, given: Mapping[str, Any], say: Callable[[float, str], Any]
) -> dict[str, Any]:
    """The answer of one call, made in a process of its own, which ends where this is cancelled.

    `say` is awaited with the seconds since the beginning and what the call is doing.
    """
    import signal
    import subprocess
    from contextlib import suppress

    import anyio

    try:
        found = checked(root, tool, given)
    except UserError as error:
        return {"error": str(error)}
    with TemporaryDirectory(prefix="pgle-mcp-", ignore_cleanup_errors=True) as scratch:
        command = [
            sys.executable,
            "-P",
            "-c",
            "from pgle.mcp import work; work()",
            tool,
            json.dumps(found),
        ]
        environment = {
            **os.environ,
            "COLUMNS": "160",
            "PGLE_ANSWER": str(Path(scratch, "answer")),
        }
        process = await anyio.open_process(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=None,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        since, rest = anyio.current_time(), b""
        try:
            assert process.stderr is not None
            async for piece in process.stderr:
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if line.startswith(b"pgle: "):
                        await say(
                            anyio.current_time() - since,
                            line.decode(errors="replace").removeprefix("pgle: "),
                        )
            await process.wait()
        finally:
            with anyio.CancelScope(shield=True):
                if process.returncode is None:  # cancelled: it deletes what it made
                    process.send_signal(signal.SIGINT)
                    with anyio.move_on_after(GRACE_S):
                        await process.wait()
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        answer = Path(scratch, "answer")
        if not answer.exists():
            return {"error": f"the call ended with exit code {process.returncode}"}
        made: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        return made


def work() -> None:
    """One call: tool and arguments come as words, the answer goes into the file that the
    environment names.
    """
    from pgle.report import text as progress

    progress.is_shown, progress.LOG_S = True, SAY_S
    os.dup2(2, 1)  # what a library prints is no message of the protocol
    try:
        answer = TOOLS[sys.argv[1]](**json.loads(sys.argv[2]))
        found = {
            "text": str(answer),
            "document": dict(answer.document),
            "ok": answer.ok,
        }
    except UserError as error:
        found = {"error": str(error)}
    except KeyboardInterrupt:
        sys.exit(1)
    Path(os.environ["PGLE_ANSWER"]).write_text(json.dumps(found), encoding="utf-8")


def serve(root: Path) -> None:
    """Serve the tools on stdin and stdout until the client goes."""
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
            remedy="pip install 'pgle[mcp]'",
        ) from None

    async def listed(*_: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name,
                    description=(getdoc(function) or "").partition("\n\n")[0],
                    input_schema=arguments(name),
                    output_schema=output_schema(name),
                    annotations=types.ToolAnnotations(
                        read_only_hint=True, open_world_hint=False
                    ),
                )
                for name, function in TOOLS.items()
            ]
        )

    async def called(
        context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name not in TOOLS:
            made: dict[str, Any] = {
                "error": f"no tool called {params.name!r}; there are {', '.join(TOOLS)}"
            }
        else:

            async def say(seconds: float, what: str) -> None:
                await context.session.report_progress(seconds, None, what)

            made = await call(root, params.name, params.arguments or {}, say)
        text = made.get("error") or made["text"]
        content: Any = [types.TextContent(type="text", text=text)]
        return types.CallToolResult(
            content=content,
            structured_content=made.get("document") or None,
            is_error="error" in made,
        )

    async def main() -> None:
        about = f"Answers of pgle on the folder {root}: traces, profiles, HLO, logs and step times of JAX programs on GPUs."
        server = Server(
            "pgle",
            version=__version__,
            instructions=f"{about} Begin with the tool folder.",
            on_list_tools=listed,
            on_call_tool=called,
        )
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(main)
