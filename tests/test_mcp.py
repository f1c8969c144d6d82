"""The tools of `pgle mcp`, asked by the SDK's own client over stdio."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from schemas import violations

import pgle
from pgle.cli.main import run
from pgle.mcp import (
    MOST_BYTES,
    MOST_PATHS,
    TOOLS,
    PathsInside,
    arguments,
    bounded,
    checked,
)

if TYPE_CHECKING:
    from mcp import Client

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="needs the mcp extra")
MODULE = "step.mlir"


TESTDATA = Path(__file__).parents[1] / "testdata"


def made(place: Path) -> Path:
    """A folder with a job, a log and a step; and what lies outside it."""
    root = place / "root"
    root.mkdir()
    shutil.copytree(TESTDATA / "pax_fsdp4", root / "job")
    shutil.copy(TESTDATA / "stablehlo" / "fsdp_mlp_jax_0.10.2.mlir", root / MODULE)
    shutil.copy(TESTDATA / "maxtext_pgle" / "llama2_7b_pgle_run.log", root / "run.log")
    (place / "secret.log").write_text("outside")
    (root / "links").mkdir()
    (root / "links" / "out").symlink_to(place)
    return root


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return made(tmp_path)


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one client heard in one talk, about which several tests know a fact."""
    folder = made(tmp_path_factory.mktemp("talk"))
    secret = str(folder.parent / "secret.log")
    calls: dict[str, tuple[str, dict[str, object]]] = {
        "ranks": ("ranks", {"paths": ["job/proc0/dump", "job/proc3/dump"]}),
        "outside": ("confirm", {"log": "../secret.log"}),
        "outside by its whole name": ("confirm", {"log": secret}),
        "missing": ("predict", {"hlo": "nothing"}),
        "nothing asked": ("predict", {}),
        "no tool": ("nothing", {}),
        "confirm": ("confirm", {"log": "run.log"}),
    }
    found: dict[str, Any] = {}

    async def talk(client: Client) -> None:
        found["tools"] = (await client.list_tools()).tools
        for name, (tool, given) in calls.items():
            found[name] = await client.call_tool(tool, given)

    asked(folder, talk)
    return found


def asked(
    folder: Path,
    *talks: Callable[[Client], Awaitable[None]],
    options: tuple[str, ...] = (),
) -> None:
    """Each talk has a client and a server of its own, all at once."""
    import anyio  # here: every worker collects this file, and one runs it
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "pgle", "mcp", *options, str(folder)],
        env={"XDG_CACHE_HOME": str(folder.parent / "cache")},  # nothing is compiled yet
    )

    async def one(talk: Callable[[Client], Awaitable[None]]) -> None:
        async with Client(server) as client:
            await talk(client)

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for talk in talks:
                group.start_soon(one, talk)

    anyio.run(main)


def text(result: Any) -> str:
    return str(result.content[0].text)


def test_a_folder_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mcp", "no/such"]) == 2
    assert capsys.readouterr().err == "pgle: no/such: no such folder; check the path\n"


def test_an_agent_finds_the_slow_collective_by_tools_alone(folder: Path) -> None:
    async def talk(client: Client) -> None:
        here = await client.call_tool("folder", {})
        assert "Next: pgle analyze job/proc" in text(here)
        found = await client.call_tool(
            "analyze", {"inputs": ["job/proc0.sqlite"], "hlo": ["job/proc0/dump"]}
        )
        assert not found.is_error
        assert violations(found.structured_content) == []
        slowest = max(
            found.structured_content["collectives"], key=lambda item: item["exposed_us"]
        )
        assert slowest["name"] == "reduce-scatter-start"
        assert "reduce-scatter" in text(found)
        assert len(json.dumps(found.structured_content)) <= MOST_BYTES
        assert re.search(r"Lists in the object have at most \d+ entries", text(found))

    asked(folder, talk)


@pytest.mark.rehearse
def test_two_agents_at_once_find_the_flag_that_is_missing(folder: Path) -> None:
    async def talk(client: Client) -> None:
        found = await client.call_tool("rehearse", {"step": MODULE, "target": "a100"})
        assert violations(found.structured_content) == []
        (name,) = re.findall(
            r"Set --(\w+)=true: it is off by default here", text(found)
        )
        explained = await client.call_tool("flags_explain", {"name": name})
        assert explained.structured_content["setting"]["name"] == name

    asked(folder, talk, talk)


@pytest.mark.rehearse
def test_a_search_and_sizes_are_answered_and_nothing_is_written(folder: Path) -> None:
    before = sorted(folder.rglob("*"))

    async def talk(client: Client) -> None:
        tuned = await client.call_tool(
            "tune", {"step": MODULE, "target": "a100", "budget": 1}
        )
        assert violations(tuned.structured_content) == []
        assert len(tuned.structured_content["trials"]) == 1
        scaled = await client.call_tool("scale", {"build": MODULE, "target": "a100"})
        assert violations(scaled.structured_content) == []
        (row,) = scaled.structured_content["rows"]
        assert row["devices"] == 4

    asked(folder, talk)
    assert sorted(folder.rglob("*")) == before


def test_ranks_are_compared(answers: dict[str, Any]) -> None:
    same = answers["ranks"]
    assert violations(same.structured_content) == []
    assert same.structured_content["ok"]


def test_long_lists_are_cut_until_an_object_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgle.mcp.MOST_BYTES", 120)
    given = {"schema": "x", "few": [1, 2], "of": {"many": [*range(100)]}}
    found, most = bounded(given)
    assert found == {"schema": "x", "few": [1, 2], "of": {"many": [*range(16)]}}
    assert most == 16
    assert bounded({"few": [1, 2]}) == ({"few": [1, 2]}, None)


@pytest.mark.rehearse
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_program_starts_with_leave_and_ends_with_its_call(folder: Path) -> None:
    (folder / "train.py").write_text("import time\nopen('begun', 'w')\ntime.sleep(600)")
    words = [sys.executable, "train.py"]

    import anyio

    async def started(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "advise", {"step": words}, 60)
            with anyio.fail_after(60):
                while not (folder / "begun").exists():
                    await anyio.sleep(0.02)
            group.cancel_scope.cancel()
        with anyio.fail_after(60):
            while workers(folder):
                await anyio.sleep(0.02)
        tools = (await client.list_tools()).tools
        assert {tool.name for tool in tools if not tool.annotations.read_only_hint} == {
            *("rehearse", "tune", "scale", "advise"),
        }

    for tool, name in (("advise", "step"), ("rehearse", "step"), ("scale", "build")):
        with pytest.raises(pgle.UserError, match="start it with: pgle mcp --programs"):
            checked(folder, tool, {name: words})
    asked(folder, started, options=("--programs",))


def test_tools_say_what_they_take_and_return(answers: dict[str, Any]) -> None:
    tools = {tool.name: tool for tool in answers["tools"]}
    assert set(tools) == set(TOOLS)
    assert all(
        tool.annotations and tool.annotations.read_only_hint for tool in tools.values()
    )
    assert set(tools["verify"].input_schema["properties"]) == {
        "profile", "hlo", "module", "min_time_coverage", "min_collectives",
    }  # fmt: skip
    schema = json.loads(
        (Path(__file__).parents[1] / "docs/schemas/pgle.verify-1.json").read_text()
    )
    assert tools["verify"].output_schema == schema
    assert not any(
        "output" in tool.input_schema["properties"] for tool in tools.values()
    )


def test_what_cannot_be_answered_is_an_error_with_its_remedy(
    answers: dict[str, Any],
) -> None:
    for name, message in [
        ("outside", "is outside the folder"),
        ("outside by its whole name", "is outside the folder"),
        ("missing", "no such file"),
        ("nothing asked", "'hlo' is a required property"),
        ("no tool", "no tool called 'nothing'; there are folder, analyze"),
    ]:
        assert answers[name].is_error
        assert message in text(answers[name])
    assert "cannot tell whether the profile was used" in text(answers["confirm"])


def workers(folder: Path) -> list[int]:
    """Processes whose working directory is the folder: calls, and the compilers that they
    started.
    """
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError):  # it ended meanwhile, or is another user's
            if os.readlink(f"/proc/{name}/cwd") == str(folder):  # noqa: PTH115 - cheap
                found.append(int(name))
    return found


def module_of(products: int) -> str:
    """StableHLO of a chain of matrix products, of which XLA compiles about 300 a second."""
    of = "tensor<1024x1024xf32>"
    lines = (
        f"%dot{at} = stablehlo.dot_general %x{at}, %x{at}, contracting_dims = [1] x [0] : ({of}, {of}) -> {of}\n"
        f"%x{at + 1} = stablehlo.tanh %dot{at} : {of}\n"
        for at in range(products)
    )
    body = f"func.func public @main(%x0: {of}) -> {of} {{\n{''.join(lines)}return %x{products} : {of}\n}}"
    return (
        f"module @jit_long attributes {{mhlo.num_partitions = 8 : i32}} {{\n{body}\n}}"
    )


@pytest.mark.rehearse
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_long_work_reports_and_ends_where_it_is_cancelled(folder: Path) -> None:
    # a short one may be over when its first message is read
    (folder / "long.mlir").write_text(module_of(10_000), encoding="utf-8")
    said: list[str] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        said.append(message or "")

    import anyio

    async def until(is_so: Callable[[], bool]) -> None:
        with anyio.fail_after(60):
            while not is_so():
                await anyio.sleep(0.02)

    async def talk(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(
                client.call_tool, "rehearse", {"step": "long.mlir"}, 60, heard
            )
            await until(lambda: any("compiling jit_long" in line for line in said))
            assert len(workers(folder)) > 1
            assert not (await client.call_tool("confirm", {"log": "run.log"})).is_error
            group.cancel_scope.cancel()
        await until(lambda: not workers(folder))
        assert not (await client.call_tool("confirm", {"log": "run.log"})).is_error

    asked(folder, talk)


def words_of(process: int) -> list[str]:
    """The command line of a process, which every user of the machine can read; empty if it is gone."""
    try:
        return (Path("/proc") / str(process) / "cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.mark.rehearse
@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_and_its_calls(
    number: int, folder: Path, tmp_path: Path
) -> None:
    (folder / "long.mlir").write_text(module_of(2_000), encoding="utf-8")
    stdin, writer = (
        os.pipe()
    )  # stays open: the client says nothing more and does not go
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        command = [sys.executable, "-m", "pgle", "mcp", str(folder)]
        server = subprocess.Popen(
            command, stdin=stdin, stdout=out, stderr=err, preexec_fn=heed_interrupts
        )
    os.close(stdin)
    try:
        call = {
            "name": "rehearse",
            "arguments": {"step": "long.mlir", "target": "a100"},
        }
        about = {"protocolVersion": "2025-06-18", "capabilities": {}}
        about["clientInfo"] = {"name": "test", "version": "1"}
        for message in (
            {"id": 1, "method": "initialize", "params": about},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": call},
        ):
            os.write(writer, json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        until(lambda: len(workers(folder)) > 1)
        assert not any(
            "long.mlir" in word for of in workers(folder) for word in words_of(of)[:6]
        )
        server.send_signal(number)
        assert server.wait(60) == 128 + number
        until(lambda: not workers(folder))
    finally:
        server.kill()
        os.close(writer)
    assert (
        (tmp_path / "err")
        .read_text()
        .endswith(f"ended by {signal.Signals(number).name}\n")
    )


def heed_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so; a minute is too long."""
    ends = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_a_call_takes_so_many_paths(folder: Path) -> None:
    given = {"base": "run.log", "new": ["run.log"] * (MOST_PATHS + 1)}
    with pytest.raises(
        pgle.UserError, match="new: 257 values, and at most 256 are taken"
    ):
        checked(folder, "compare", given)


def test_the_paths_of_a_call_together_hold_so_many_files(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = sum(1 for _ in (folder / "job").rglob("*"))
    monkeypatch.setattr("pgle.mcp.MOST_ENTRIES", 2 * held)
    paths = PathsInside(folder)
    assert [paths.relative("job"), paths.relative("job")] == ["job", "job"]
    with pytest.raises(pgle.UserError, match="the paths of this call hold more than"):
        paths.relative("job")


@pytest.mark.parametrize("path", ["a" * 5000, "a\0b", "circle"])
def test_what_can_be_no_path_is_refused(path: str, folder: Path) -> None:
    (folder / "circle").symlink_to("circle")
    with pytest.raises(pgle.UserError, match="is no path; check the path"):
        PathsInside(folder).relative(path)


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "links",
        "links/out",
        "links/out/secret.log",
        "/etc/passwd",
        "job/../../x",
        ".",
    ],
)
def test_no_path_leads_out(path: str, folder: Path) -> None:
    with pytest.raises(pgle.UserError, match="is outside the folder of this server"):
        PathsInside(folder).relative(path)


@pytest.mark.parametrize(
    "path",
    ["job", "./job/proc0.sqlite", "job/../run.log", "gs://bucket/run", "-", "~/x"],
)
def test_paths_within_are_relative(path: str, folder: Path) -> None:
    found = PathsInside(folder).relative(path)
    assert not found.startswith("/")
    assert "://" not in found


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"step": MODULE, "flags": ["--xla_dump_to=here"]}, "names a file"),
        ({"step": MODULE, "flags": ["--xla_gpu_thing=/etc/passwd"]}, "names a file"),
        ({"step": MODULE, "target": "/etc/passwd"}, "is outside"),
        ({"step": MODULE, "profile": "../p.pbtxt"}, "is outside"),
        ({"step": MODULE, "output": "here"}, "'output' was unexpected"),
        ({"step": ["/etc/passwd"]}, "starts a program"),
        ({"step": ["run.log"]}, "starts a program"),
        ({"step": [MODULE, "run.log"]}, "starts a program"),
        ({"step": 1}, "is not of type"),
    ],
)
def test_calls_that_are_refused(
    given: dict[str, Any], message: str, folder: Path
) -> None:
    with pytest.raises(pgle.UserError) as error:
        checked(folder, "rehearse", given)
    assert message in str(error.value)


@pytest.mark.parametrize("tool", ["tune", "scale"])
def test_no_tool_opens_a_connection(tool: str, folder: Path) -> None:
    given = {"step" if tool == "tune" else "build": [MODULE]}
    elsewhere = {**given, "executor": "dask://host:8786"}
    for programs in (False, True):
        assert checked(folder, tool, given, programs) == given
        with pytest.raises(pgle.UserError, match="'executor' was unexpected"):
            checked(folder, tool, elsewhere, programs)
    assert not any("executor" in arguments(name)["properties"] for name in TOOLS)


def test_one_path_may_stand_for_a_list(folder: Path) -> None:
    assert checked(
        folder, "compare", {"base": "run.log", "new": ["job/../run.log"]}
    ) == {
        "base": ["run.log"],
        "new": ["run.log"],
    }


@pytest.mark.parametrize("tool", ["rehearse", "tune"])
def test_a_module_may_be_the_only_word(tool: str, folder: Path) -> None:
    for given in (MODULE, [MODULE]):
        assert checked(folder, tool, {"step": given}) == {"step": given}


def test_a_text_alone_starts_no_program_either(folder: Path) -> None:
    script = folder / "train.sh"
    script.write_text("#!/bin/sh")
    with pytest.raises(pgle.UserError, match=r"train\.sh: starts a program"):
        checked(folder, "scale", {"build": "train.sh"})
    for function in (pgle.advise, pgle.rehearse):
        with pytest.raises(pgle.UserError, match="is no module"):
            function(str(script))


def test_a_run_directory_that_records_a_program_starts_none(folder: Path) -> None:
    run = folder / "run"
    run.mkdir()
    (run / "manifest.json").write_text("{}")
    for step in ("run", ["run"]):
        with pytest.raises(pgle.UserError, match="starts a program"):
            checked(folder, "advise", {"step": step})
    assert checked(folder, "rehearse", {"step": "run"}) == {"step": "run"}


def test_sizes_are_numbers_though_json_has_no_such_keys(folder: Path) -> None:
    given = {"build": MODULE, "measured_us": {"4": 100.5}}
    assert checked(folder, "scale", given)["measured_us"] == {4: 100.5}
    with pytest.raises(pgle.UserError, match="does not match"):
        checked(folder, "scale", {"build": MODULE, "measured_us": {"a": 1}})


SKILL = Path(pgle.__file__).parent / "starters/skill/SKILL.md"


def test_the_skill_names_every_tool_and_its_arguments() -> None:
    text = SKILL.read_text()
    rows = re.findall(r"^\| .+\? \| `(\w+)` \| (.+) \|$", text, re.M)
    assert sorted(tool for tool, _ in rows) == sorted(TOOLS)
    for tool, given in rows:
        named = set(re.findall(r"`(\w+)`", given))
        assert named - {"TF_CPP_MIN_LOG_LEVEL"} <= set(arguments(tool)["properties"])
    assert len(text.splitlines()) <= 60


def test_every_argument_is_described() -> None:
    for tool in TOOLS:
        schema = arguments(tool)
        assert schema["properties"]
        assert all(item["description"] for item in schema["properties"].values()), tool
