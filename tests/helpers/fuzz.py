"""Commands on damaged inputs, in this process: what is damaged, what is run, and what must hold
afterwards.

Case N is the same on every machine: `random.Random(N)` decides everything. No compiler runs: where
a command asks for a compilation, it gets a recorded one, whatever the module.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import random
import re
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import mutations as damage
from wild_texts import FATAL_ENDS, HLO_TEXTS

from pgle.cli.main import run
from pgle.costs.profile.files import read_profile
from pgle.run.compiler.cache import Cache, Compiled
from pgle.run.compiler.compile import Compiler, CompileRequest
from pgle.run.compiler.worker import LOG
from pgle.xla.hlo import schedule_dump

TESTDATA = Path(__file__).parent.parent.parent / "testdata"
HLO = "hlo/jax-0.12.0.1/collectives/module_0001.jit_collectives.sm_8.0_gpu_after_optimizations"
SCHEDULE = "hlo/jax-0.12.0.1/collectives/jit_collectives.schedule"
SYNTHETIC = "nsys_synthetic/synthetic_cases.sqlite"
LONGEST_S = 30

Words = list[str | Path]
_COST = re.compile(r"cost_us: (\S+)")


class Case:
    """One command and its inputs, in a folder of its own."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.draw = random.Random(seed)
        self.inputs, self.outputs = folder / "in", folder / "out"
        self.cache = Cache(folder / "cache", 1 << 30)
        self.entry: bytes | None = None  # what the cache holds under every key
        self.inputs.mkdir(parents=True)
        self.outputs.mkdir()
        self.kind = self.draw.choice(list(KINDS))
        self.words = [str(word) for word in KINDS[self.kind](self)]
        if (
            self.draw.random() < 0.4
            and self.words[0] != "flags"
            and "plot" not in self.words
        ):
            self.words.append("--json")

    def given(
        self, name: str, data: bytes, how: damage.Damage, times: int | None = None
    ) -> Path:
        """An input with this content, damaged some times."""
        for _ in range(
            self.draw.choice((0, 1, 1, 1, 2, 4)) if times is None else times
        ):
            data = how(data, self.draw)
        path = self.inputs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def out(self, *suffixes: str) -> Path:
        return self.outputs / f"x{self.draw.choice(suffixes)}"


@cache
def stored(name: str) -> bytes:
    """A file of testdata, unpacked."""
    data = (TESTDATA / name).read_bytes()
    return lzma.decompress(data) if name.endswith(".xz") else data


@cache
def profile_and_sidecar(folder: str) -> tuple[bytes, bytes, bytes]:
    """A small converted profile as text and binary, and its sidecar."""
    from tempfile import TemporaryDirectory

    with (
        TemporaryDirectory() as place,
        redirect_stdout(io.StringIO()),
        redirect_stderr(io.StringIO()),
    ):
        for suffix in (".pbtxt", ".pb"):
            assert (
                run(["convert", str(TESTDATA / folder), "-o", f"{place}/x{suffix}"])
                == 0
            )
        read = Path(place).joinpath
        return (
            read("x.pbtxt").read_bytes(),
            read("x.pb").read_bytes(),
            read("x.pbtxt.json").read_bytes(),
        )


def compiled(
    _: Compiler, request: CompileRequest, folder: Path, _unscheduled: object
) -> Compiled:
    """A compilation from testdata, in the place of `Compiler._compiled`."""
    with_schedule = "--xla_gpu_enable_latency_hiding_scheduler=true" in request.flags
    for name, data in recorded_files(with_schedule=with_schedule).items():
        (folder / name).write_bytes(data)
    return COMPILED


COMPILED = Compiled("jit_collectives", 4, 1.0, "0.12.0.1")


def recorded_files(*, with_schedule: bool) -> dict[str, bytes]:
    """The files of a compilation, by name."""
    log = (TESTDATA / "logs/jax_0.12.0.1/half.log").read_bytes()
    found = {Path(f"{HLO}.hlo.pb").name: stored(f"{HLO}.hlo.pb.xz"), LOG: log}
    if with_schedule:
        found[Path(f"{SCHEDULE}.txt").name] = stored(f"{SCHEDULE}.txt.xz")
    return found


_load = Cache.load


def loaded(
    case: Case, cache: Cache, key: str, folder: Path, names: Mapping[str, str]
) -> Any:
    """As `Cache.load`, of a cache that holds the entry of a case under every key."""
    if case.entry is not None:
        cache.folder.mkdir(exist_ok=True)
        (cache.folder / key).write_bytes(case.entry)
    return _load(cache, key, folder, names)


_parse_text = schedule_dump._parse_text


@cache
def _recorded_schedule() -> Any:
    return _parse_text(stored(f"{SCHEDULE}.txt.xz"), Path(SCHEDULE))


def parsed(data: bytes, path: Path) -> Any:
    """The text of a schedule, in the place of `schedule_dump._parse_text`: that of `compiled` is
    parsed once.
    """
    return (
        _recorded_schedule()
        if data == stored(f"{SCHEDULE}.txt.xz")
        else _parse_text(data, path)
    )


def of_trace(case: Case, path: Path, *suffixes: str) -> Words:
    """A command that reads a trace."""
    commands: list[Words] = [
        ["convert", path, "-o", case.out(*suffixes), *options(case)],
        ["show", path],
        ["analyze", path],
    ]
    words = case.draw.choices(commands, (6, 2, 2))[0]
    if words[0] != "show" and case.draw.random() < 0.2:
        words += [
            "--hlo",
            case.given("d.hlo.pb", stored(f"{HLO}.hlo.pb.xz"), damage.damage_proto),
        ]
    return words


@cache
def matching_profile() -> bytes:
    """Costs of some instructions of `HLO`."""
    names = re.findall(
        rb"^ +%?((?:all|reduce|collective|loop|gemm|wrapped|input)[\w.-]*) =",
        stored(f"{HLO}.txt.xz"),
        re.M,
    )
    return b"".join(
        b'costs { name: "%s" cost_us: %d.5 }\n' % (name, len(name)) for name in names
    )


def nsys(case: Case) -> Words:
    path = case.inputs / "t.sqlite"
    shutil.copy(TESTDATA / SYNTHETIC, path)
    for _ in range(case.draw.choice((0, 1, 1, 2, 4))):
        damage.damage_sqlite(path, case.draw)
        if not path.read_bytes().startswith(b"SQLite"):
            break
    return of_trace(case, path, ".pbtxt", ".pb", ".pbtxt", ".pb", "")


def xplane(case: Case) -> Words:
    name = case.draw.choice(("cpu_4dev_jax_0_12_0", "jax08_gemm"))
    path = case.given(
        "t.xplane.pb", stored(f"jax_xplane/{name}.xplane.pb"), damage.damage_proto
    )
    return of_trace(case, path, ".pbtxt", ".pb")


def hlo(case: Case) -> Words:
    name, how = case.draw.choice(
        [(f"{HLO}.hlo.pb", damage.damage_proto), (f"{HLO}.txt", damage.damage_text),
         (f"{SCHEDULE}.pb", damage.damage_proto), (f"{SCHEDULE}.txt", damage.damage_text)]
    )  # fmt: skip
    data, packed = stored(f"{name}.xz"), case.draw.random() < 0.2
    for _ in range(case.draw.choice((0, 1, 1, 2))):
        data = how(data, case.draw)
    data = lzma.compress(data, preset=0) if packed else data
    times = int(packed and case.draw.random() < 0.3)
    path = case.given(
        Path(name).name + ".xz" * packed, data, damage.damage_bytes, times
    )
    profile = case.given(
        "p.pbtxt", profile_and_sidecar(SYNTHETIC)[0], damage.damage_text, 0
    )
    commands: list[Words] = [
        ["verify", profile, "--hlo", path],
        [
            "complete",
            profile,
            "--hlo",
            path,
            "-o",
            case.out(".pbtxt", ".pb"),
            "--target",
            "a100",
        ],
        ["predict", path, "--target", "h100"],
        ["predict", path, "--profile", profile, "--target", target(case)],
    ]
    return case.draw.choice(commands)


def target(case: Case) -> str | Path:
    """A GPU by name, or a description of one."""
    if case.draw.random() < 0.5:
        return "a100"
    text = (files("pgle.xla") / "data/targets/h100-sxm.txtpb").read_bytes()
    return case.given("gpu_target_config.pbtxt", text, damage.damage_text)


def rehearsals(case: Case) -> Words:
    module = case.given(
        "step.mlir", stored("stablehlo/fsdp_mlp_jax_0.12.0.1.mlir"), damage.damage_text
    )
    if case.draw.random() < 0.3:
        module = case.given(
            "step.hlo.pb", stored(f"{HLO}.hlo.pb.xz"), damage.damage_proto
        )
    profile = case.given("p.pbtxt", matching_profile(), damage.damage_text)
    words: Words = [
        module,
        "--target",
        target(case),
        "--no-cache",
        "-o",
        case.outputs / "r",
    ]
    words += ["--profile", profile] if case.draw.random() < 0.8 else []
    words += (
        ["--topology", case.draw.choice(damage.NUMBERS)[:20]]
        if case.draw.random() < 0.1
        else []
    )
    if case.draw.random() < 0.3:
        return ["tune", *words, "--budget", "4"]
    return ["rehearse", *words]


def hlo_texts(case: Case) -> Words:
    """A form of HLO text that XLA's parser reads."""
    text = case.draw.choice(HLO_TEXTS).encode()
    path = case.given(
        "module_0001.jit_f.sm_9.0_gpu_after_optimizations.txt", text, tangled
    )
    profile = case.given("p.pbtxt", matching_profile(), damage.damage_text, 0)
    commands: list[Words] = [
        ["predict", path, "--target", "h100"],
        ["predict", path, "--profile", profile, "--target", "a100", "--all"],
        ["verify", profile, "--hlo", path],
        [
            "complete",
            profile,
            "--hlo",
            path,
            "-o",
            case.out(".pbtxt"),
            "--target",
            "h100",
        ],
        ["carry", profile, "--from", path, "--to", path, "-o", case.out(".pbtxt")],
    ]
    return case.draw.choice(commands)


def schedules(case: Case) -> Words:
    """A dump of a schedule, whose messages are nested, lost or repeated."""
    name, how = case.draw.choice(
        [(f"{SCHEDULE}.pb", damage.damage_proto), (f"{SCHEDULE}.txt", tangled)]
    )
    path = case.given(f"dump/{Path(name).name}", stored(f"{name}.xz"), how)
    case.given(f"dump/{Path(HLO).name}.txt", stored(f"{HLO}.txt.xz"), tangled, 0)
    profile = case.given("p.pbtxt", matching_profile(), damage.damage_text)
    log = case.given("run.log", log_of(case), with_end)
    commands: list[Words] = [
        ["confirm", log, "--schedule", path.parent, "--profile", profile],
        ["verify", profile, "--hlo", path],
        ["predict", path, "--profile", profile, "--target", "a100"],
        ["analyze", TESTDATA / SYNTHETIC, "--hlo", path.parent],
    ]
    return case.draw.choice(commands)


def tangled(data: bytes, draw: random.Random) -> bytes:
    """Damaged text, or one with a piece between braces, brackets or parentheses nested, doubled or
    gone.
    """
    pairs = [(b"{", b"}"), (b"(", b")"), (b"[", b"]")]
    opening, closing = draw.choice(pairs)
    begins = [found.start() for found in re.finditer(re.escape(opening), data)]
    if not begins or draw.random() < 0.5:
        return damage.damage_text(data, draw)
    at = draw.choice(begins)
    end = data.find(closing, at) + 1
    times = draw.choice((1, 1, 3, 60, 400, 5000))
    piece = data[at:end]
    pieces = [
        b"",
        piece + piece,
        opening * times + closing * times,
        opening * times,
        closing,
    ]
    return data[:at] + draw.choice(pieces) + data[end:]


def cached(case: Case) -> Words:
    """A rehearsal whose compilations are in the cache, damaged."""
    files = recorded_files(with_schedule=case.draw.random() < 0.7)
    for name in list(files):
        if case.draw.random() < 0.3:
            how = damage.damage_proto if name.endswith(".pb") else damage.damage_text
            files[name] = how(files[name], case.draw)
        if case.draw.random() < 0.1:
            del files[name]
    answer = {
        "module_name": "jit_collectives",
        "num_devices": 4,
        "compile_s": 1.0,
        "jaxlib": "0.12.0.1",
    }
    if case.draw.random() < 0.3:
        answer[case.draw.choice(list(answer))] = case.draw.choice(
            ("", -1, 1e308, 2**63, None)
        )
    entry = msgspec.msgpack.encode({"answer": answer, "files": files})
    if case.draw.random() < 0.3:
        entry = damage.damage_bytes(entry, case.draw)
    entry = zlib.compress(entry, 1)
    case.entry = (
        damage.damage_bytes(entry, case.draw) if case.draw.random() < 0.2 else entry
    )
    text = stored("stablehlo/fsdp_mlp_jax_0.12.0.1.mlir")
    module = case.given("step.mlir", text, damage.damage_text, 0)
    profile = case.given("p.pbtxt", matching_profile(), damage.damage_text, 0)
    words: Words = [
        module,
        "--target",
        "a100",
        "--profile",
        profile,
        "-o",
        case.outputs / "r",
    ]
    if case.draw.random() < 0.3:
        return ["tune", *words, "--budget", "3"]
    return ["rehearse", *words]


def profiles(case: Case) -> Words:
    text, binary, sidecar = profile_and_sidecar(SYNTHETIC)
    paths = []
    for number in range(2):
        if case.draw.random() < 0.6:
            paths.append(case.given(f"{number}.pbtxt", text, damage.damage_text))
        else:
            paths.append(case.given(f"{number}.pb", binary, damage.damage_proto))
        if case.draw.random() < 0.7:
            if (
                case.draw.random() < 0.7
            ):  # a sidecar counts only where it names the profile's own hash
                told = json.loads(sidecar)
                key = next((key for key in told if "sha" in key), "sha256")
                told[key] = hashlib.sha256(paths[-1].read_bytes()).hexdigest()
                sidecar = json.dumps(told).encode()
            case.given(f"{paths[-1].name}.json", sidecar, damage.damage_json)
    commands: list[Words] = [
        ["show", paths[0], "--all"],
        ["diff", *paths],
    ]
    return case.draw.choice(commands)


def log_of(case: Case) -> bytes:
    """A log of XLA as it was recorded."""
    folders = ("jax_0.10.2", "jax_0.12.0.1")
    names = [
        path for folder in folders for path in (TESTDATA / "logs" / folder).iterdir()
    ]
    return case.draw.choice(sorted(names)).read_bytes()


def with_end(data: bytes, draw: random.Random) -> bytes:
    """A log in which a program ends, or the damage of `damage_text`."""
    if draw.random() < 0.4:
        return damage.damage_text(data, draw)
    lines = data.splitlines(keepends=True)
    prefix = draw.choice(
        (b"", b"[3] ", b"12: ", b"node7: ", b"2026-01-31 12:00:00.123456: ")
    )
    end = (
        prefix
        + draw.choice(FATAL_ENDS).encode()
        + draw.choice((b"\n", b"", b"\r\n", b"\r"))
    )
    at = draw.choice((len(lines), draw.randrange(len(lines) + 1)))
    return b"".join([*lines[:at], end, *lines[at:]])


def logs(case: Case) -> Words:
    log = case.given("run.log", log_of(case), with_end)
    more: list[Words] = [["--module", "jit"], ["--jax", "0.6.2"], [], []]
    if case.draw.random() < 0.3:
        more = [[case.given("rank1.log", log_of(case), with_end)]]
    return ["confirm", log, *case.draw.choice(more)]


def steps(case: Case) -> Words:
    paths = []
    for side in ("a", "b"):
        times = [
            0.2 + case.draw.gauss(0, 0.002) for _ in range(case.draw.choice((3, 30)))
        ]
        kind = case.draw.randrange(3)
        if kind == 0:
            lines = [
                f'{{"step": {number}, "step_time_s": {time:.6f}}}'
                for number, time in enumerate(times)
            ]
            how, suffix = damage.damage_json_lines, ".jsonl"
        elif kind == 1:
            lines = [
                "step,step_time_s,loss",
                *(f"{number},{time:.6f},1.5" for number, time in enumerate(times)),
            ]
            how, suffix = damage.damage_text, ".csv"
        else:
            lines = [
                f"completed step: {number}, seconds: {time:.3f}, loss: 1.5"
                for number, time in enumerate(times)
            ]
            how, suffix = damage.damage_text, ".log"
        paths.append(
            case.given(f"{side}{suffix}", "\n".join(lines).encode() + b"\n", how)
        )
    pages: list[Words] = [["--html", case.outputs / "x.html"]]
    return ["compare", *paths, *case.draw.choice([[], ["--fail-slower", "1%"], *pages])]


def history(case: Case) -> Words:
    entry: dict[str, Any] = {"time": "2026-01-31T12:00:00+00:00", "name": "a", "hardware": "h100", "commit": "abc",
                             "spread": 0.01, "runs": 1, "steps": 30}  # fmt: skip
    lines = "".join(
        json.dumps({**entry, "median_s": 0.2 + case.draw.gauss(0, 0.01)}) + "\n"
        for _ in range(12)
    )
    path = case.given("h.jsonl", lines.encode(), damage.damage_json_lines)
    log = TESTDATA / "maxtext_pgle/llama2_7b_pgle_run.log"
    return ["compare", log, log, "--history", path]


def manifests(case: Case) -> Words:
    run_dir = case.inputs / "run"
    (run_dir / "profile" / "trace").mkdir(parents=True)
    shutil.copy(TESTDATA / SYNTHETIC, run_dir / "profile" / "trace" / "r.sqlite")
    record = {"stage": "profile", "argv": ["python", "t.py"], "exit_code": 0, "started": "2026-01-31T12:00:00+00:00",
              "ended": "2026-01-31T12:01:00+00:00", "facts": {"module": "jit_f"}, "outputs": [
                  {"path": "profile/trace/r.sqlite", "sha256": "0" * 64, "size_bytes": 1}]}  # fmt: skip
    imported = [{"path": "model.py", "sha256": "0" * 64, "size_bytes": 1}]
    perf = {**record, "stage": "perf", "imported": imported, "before": "perf.1", "aside": "",
            "asked": {"command": ["python"]}, "versions": {"jax": "0.10.2"}, "failed": "", "ranks": 2,
            "gpus": [{"name": "A100", "memory_mib": 40960}], "topology": {"processes": 2}}  # fmt: skip
    document = {"schema": "pgle.manifest/1", "stages": [record, perf]}
    case.given("run/manifest.json", json.dumps(document).encode(), damage.damage_json)
    case.given(
        "run/perf/steps.jsonl",
        b'{"step": 1, "step_time_s": 0.2}\n' * 9,
        damage.damage_json_lines,
    )
    log = TESTDATA / "logs/jax_0.12.0.1/half.log"
    case.given("run/perf/output.log", log.read_bytes(), damage.damage_text)
    commands: list[Words] = [
        ["convert", run_dir, "-o", case.out(".pbtxt")],
        ["compare", run_dir / "perf", run_dir / "perf"],
        ["confirm", run_dir],
        ["report", run_dir, "-o", case.out(".html", ".md", ".json")],
        ["analyze", run_dir],
        ["verify", run_dir],
    ]
    return case.draw.choice(commands)


def flags(case: Case) -> Words:
    text = b"--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_all_gather_combine_threshold_bytes=1024 --xla_x=x"
    path = case.given("flags.txt", text, damage.damage_text)
    name = case.draw.choice(damage.NAMES)[:1000].replace("\0", "0")
    commands: list[Words] = [
        ["flags", "lint", "--file", path, "--jaxlib", "0.10.2"],
        ["flags", "explain", "--", name or "x"],
        ["flags", "preset", "--", name or "x"],
        ["flags", "list", "--", name],
    ]
    return case.draw.choice(commands)


@cache
def page() -> bytes:
    """A stored page."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        assert run(["report", str(TESTDATA / SYNTHETIC), "--json"]) == 0
    return out.getvalue().encode()


def pages(case: Case) -> Words:
    path = case.given("page.json", page(), damage.damage_json)
    return [
        "report",
        path,
        *case.draw.choice([[], ["-o", case.out(".html", ".md", ".json")]]),
    ]


def captured(case: Case) -> Words:
    """A program that was captured before."""
    module = "jax_ir0000_jit_train_step_compile.mlir"
    case.given(
        f"run/{module}",
        stored("stablehlo/fsdp_mlp_jax_0.12.0.1.mlir"),
        damage.damage_text,
        0,
    )
    second = "jax_ir0001_jit_train_step_compile.mlir"
    if case.draw.random() < 0.5:
        text = stored("stablehlo/fsdp_mlp_jax_0.10.2.mlir")
        case.given(f"run/{second}", text, damage.damage_text)
    known: dict[str, Any] = {"python": sys.executable, "version": [3, 12, 1], "jaxlib": "0.12.0.1", "plugin": True,
             "executed": {module: 3}, "options": {module: [["xla_gpu_autotune_level", "0"]]},
             "compiling": module, "of_jax": ["x"], "uncomputed": ["step"], "not_lowered": [module],
             "error": "ValueError: x", "place": "train.py, line 4, in f", "waits_for": "2 processes",
             "compiled_again": {second: {"first": module, "differing": [["x", "f32[4]", "f32[8]"]]}},
             "sources": {"/x/model.py": "0" * 64},
             "xla_flags": "--xla_gpu_autotune_level=0"}  # fmt: skip
    for name in case.draw.sample(list(known), case.draw.choice((0, 3, 8))):
        del known[name]
    case.given("run/.program.json", json.dumps(known).encode(), damage.damage_json)
    return [
        "rehearse",
        case.inputs / "run",
        "--target",
        "a100",
        "--no-cache",
        "-o",
        case.outputs / "r",
    ]


def named(case: Case) -> Words:
    """A file whose name is odd."""
    name = case.draw.choice(damage.NAMES).replace("/", "").replace("\0", "")[:60] or "-"
    name = (
        case.draw.choice(("", "-x", "--top=", 'it\'s "a"', "$(id) ", "\udcff", "a  b"))
        + name
    )
    kind, data = case.draw.choice(
        [
            (".pbtxt", profile_and_sidecar(SYNTHETIC)[0]),
            (".sqlite", stored(SYNTHETIC)),
            (".hlo.pb", stored(f"{HLO}.hlo.pb.xz")),
        ]
    )
    path = case.given(
        name + kind, data, damage.damage_bytes, case.draw.choice((0, 0, 1))
    )
    commands: list[Words] = [
        ["show", path],
        ["analyze", path],
        ["report", path, "-o", case.outputs / f"{name}.html"],
        ["verify", path, "--hlo", path],
        ["predict", path, "--target", "h100"],
        ["convert", path, "-o", case.outputs / f"{name}.pbtxt"],
        ["convert", path],
        ["compare", path, path],
        ["diff", path, path],
        ["confirm", path],
        ["flags", "preset", "pgle-perf", "--profile", path],
        ["compare", path, path, "--history", path],
    ]
    return case.draw.choice(commands)


def asked(case: Case) -> Words:
    """Values of options that are numbers, or nearly."""
    value = case.draw.choice(
        (
            *damage.NUMBERS,
            "100%",
            "150%",
            "99.999%",
            "1",
            "1e-300%",
            "%",
            "2 %",
            "50%",
            "3",
        )
    )[:40]
    times = b"".join(
        b'{"step": %d, "step_time_s": 0.%d}\n' % (step, 200 + step % 7)
        for step in range(30)
    )
    slower = b"".join(
        b'{"step": %d, "step_time_s": 0.%d}\n' % (step, 420 + step % 9)
        for step in range(30)
    )
    sides = [
        case.given(f"{side}.jsonl", data, damage.damage_bytes, 0)
        for side, data in (("a", times), ("b", slower))
    ]
    profile = case.given(
        "p.pbtxt", profile_and_sidecar(SYNTHETIC)[0], damage.damage_text, 0
    )
    module = case.given("m.hlo.pb", stored(f"{HLO}.hlo.pb.xz"), damage.damage_proto, 0)
    compared = ("same-within", "fail-slower", "launch-spread", "confidence", "warmup")
    commands: list[Words] = [
        *(
            ["compare", *case.draw.sample(sides, 2), f"--{option}={value}"]
            for option in compared
        ),
        ["verify", profile, "--hlo", module, f"--min-time-coverage={value}"],
        ["verify", profile, "--hlo", module, f"--min-collectives={value}"],
        ["convert", TESTDATA / SYNTHETIC, "-o", case.out(".pbtxt"), f"--stat={value}"],
        ["convert", TESTDATA / SYNTHETIC, "-o", case.out(".pbtxt"), f"--stat=p{value}"],
        ["predict", module, f"--target={value}"],
        [
            "rehearse",
            module,
            "--target",
            "a100",
            "--no-cache",
            f"--devices={value}",
            "-o",
            case.outputs / "r",
        ],
        [
            "rehearse",
            module,
            "--target",
            "a100",
            "--no-cache",
            f"--topology={value}x1x{value}",
            "-o",
            case.outputs / "r",
        ],
        [
            "tune",
            module,
            "--target",
            "a100",
            "--no-cache",
            f"--budget={value}",
            "-o",
            case.outputs / "r",
        ],
        [
            "history",
            "add",
            sides[0],
            "--file",
            case.outputs / "h.jsonl",
            f"--name={value}",
        ],
    ]
    return case.draw.choice(commands)


def options(case: Case) -> Words:
    """Options of convert."""
    return case.draw.choice(
        [[], [], ["--module", "all"], ["--stat", "p90"], ["--all-executions"]]
    )


KINDS: dict[str, Callable[[Case], Words]] = {
    function.__name__: function
    for function in (
        nsys,
        xplane,
        hlo,
        hlo_texts,
        schedules,
        cached,
        rehearsals,
        profiles,
        logs,
        steps,
        history,
        manifests,
        flags,
        pages,
        captured,
        named,
        asked,
    )
}


def check(seed: int, folder: Path) -> None:
    """Run one case.

    Raises:
        AssertionError: something that must hold does not; it says how to run the case again.
    """
    case = Case(seed, folder)
    try:
        _check(case)
    except BaseException as error:
        words = " ".join(case.words)
        again = f"again: FUZZ_SEED={seed} python -m pytest tests/fuzz; its files are kept in {folder}"
        raise AssertionError(
            f"case {seed} ({case.kind}): {error!r}\npgle {words}\n{again}"
        ) from error
    shutil.rmtree(folder)


def _check(case: Case) -> None:
    before = _files(case.inputs)
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace"),
        io.StringIO(),
    )
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(LONGEST_S)
    try:
        with ExitStack() as stack:
            for change in (
                patch.object(Compiler, "_compiled", compiled),
                patch.object(schedule_dump, "_parse_text", parsed),
                patch.object(Cache, "of_user", lambda: case.cache),
                patch.object(Cache, "load", lambda *given: loaded(case, *given)),
                redirect_stdout(out),
                redirect_stderr(err),
                chdir(case.outputs),  # a report goes there by default
            ):
                stack.enter_context(change)
            code = run(case.words)
    finally:
        signal.alarm(0)
    out.flush()
    printed, said = out.buffer.getvalue().decode(), err.getvalue()  # type: ignore[attr-defined]
    assert code in (0, 1, 2), code
    assert "internal error" not in said, said
    assert code != 2 or said.startswith("pgle: "), said
    assert all(line.isprintable() for line in (printed + said).split("\n")), repr(
        printed + said
    )
    assert _files(case.inputs) == before, "an input is changed"
    written = sorted(path.name for path in case.outputs.rglob("*") if path.is_file())
    assert code != 2 or not written, f"files left behind: {written}"
    assert not [name for name in written if name.endswith(".tmp")], written
    if "--json" in case.words and code != 2:
        json.loads(printed, parse_constant=_no_number)
    for path in case.outputs.rglob("*"):
        if path.suffix == ".json":
            json.loads(path.read_bytes(), parse_constant=_no_number)
        elif path.suffix in (".pbtxt", ".pb") and "hlo" not in path.name:
            costs = [cost.cost_us for cost in read_profile(path).costs]
            assert all(0 <= cost < float("inf") for cost in costs), (
                f"costs written: {min(costs)} to {max(costs)}"
            )


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _no_number(name: str) -> None:
    raise AssertionError(f"{name} in JSON")


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"more than {LONGEST_S} s")
