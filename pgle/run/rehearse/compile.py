"""Rehearsal: compile one module with the real XLA:GPU compiler on a machine that needs no GPU.

`rehearse_compile` starts `pgle.run.rehearse.worker` in a child process, so that XLA's flags, its log and its crashes
stay apart, and collects what the compiler left behind: the scheduled module, the schedule that the latency-hiding
scheduler believed in, the log as events, times and memory.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pgle
from pgle.errors import UserError
from pgle.files import read_bytes, write_files
from pgle.run.rehearse.crash import crash
from pgle.run.rehearse.worker import RESULT, STARTED
from pgle.xla.log.wordings import NO_TOOLKIT

EVIDENCE_FLAGS = ("--xla_dump_hlo_as_proto=true", "--xla_dump_latency_hiding_schedule=true")
"""What every rehearsal adds to the flags; neither changes a fingerprint or a schedule."""

PROFILE_FLAG = "--xla_gpu_pgle_profile_file_or_directory_path"
CODE_GENERATION = (".ll", ".ptx", ".ttir")
"""Dumps of code generation, hundreds for a large step and of no use here (jax before 0.12): removed."""

REQUEST, LOG = "request.json", "xla.log"

_FINGERPRINT = re.compile(rb"\x0a\x16fingerprint_before_lhs\x12\x20([0-9a-f]{32})")


@dataclass(frozen=True)
class RehearsalRequest:
    """What to compile, and how.

    Attributes:
        module: StableHLO text or bytecode (``JAX_DUMP_IR_TO``), a `jax.export` artifact, a
            ``*.before_optimizations.hlo.pb`` dump or HLO text; ``.xz`` and ``.gz`` are read.
        target: text of a GpuTargetConfigProto (`pgle.xla.targets.Target.text`).
        dump_dir: folder for the dumps, the log and the worker's files; must be new or empty.
        topology: ``SxHxD`` (slices, hosts per slice, devices per host); None: one host of as many devices as the
            module is partitioned for.
        flags: XLA flags, each ``--name=value``; nothing else is passed on but `EVIDENCE_FLAGS`, and the later wins.
        profile: a cost profile, or None.
        profile_as: give it as XLA flag (applies to every module) or as compile option ``fdo_profile``.
        portable_target: `Target.portable_text`, for a jax that does not know all of `target`.
        python: the interpreter whose jax compiles; it needs jax and the CUDA plugin, not pgle.
        vmodule: ``TF_CPP_VMODULE``, for more of XLA's log.
        timeout_s: give up after so many seconds; None: never.
    """

    module: Path
    target: str
    dump_dir: Path
    topology: str | None = None
    flags: tuple[str, ...] = ()
    profile: Path | None = None
    profile_as: Literal["flag", "option"] = "flag"
    portable_target: str = ""
    python: str = sys.executable
    vmodule: str = ""
    timeout_s: float | None = None


@dataclass(frozen=True)
class RehearsalResult:
    """What a rehearsal left.

    Attributes:
        module_name: ``jit_train_step``.
        num_partitions: SPMD partitions it was compiled for.
        after_optimizations: the scheduled module, an HloProto file.
        before_optimizations: the module as XLA first saw it; None where XLA dumped none.
        schedule: the schedule dump of the latency-hiding scheduler; None where it did not run.
        log: XLA's log, whole.
        fingerprint: ``fingerprint_before_lhs``; empty where the module has none.
        compile_s: seconds in XLA's compile call.
        start_s: seconds for importing jax, loading the plugin and reading the module.
        wall_s: seconds from starting the child to having this result.
        memory: XLA's memory analysis in bytes (argument, output, alias, temp, generated_code); empty where code
            generation stopped before it.
        stopped_for_toolkit: True where code generation ended for lack of ptxas or libdevice, long after scheduling.
        jaxlib: version of the jaxlib that compiled.
    """

    module_name: str
    num_partitions: int
    after_optimizations: Path
    before_optimizations: Path | None
    schedule: Path | None
    log: Path
    fingerprint: str
    compile_s: float
    start_s: float
    wall_s: float
    memory: Mapping[str, int]
    stopped_for_toolkit: bool
    jaxlib: str

    @property
    def memory_bytes(self) -> int | None:
        """Device memory that one execution needs, None where XLA's analysis is missing."""
        if "temp" not in self.memory:
            return None
        needed = sum(self.memory.get(name, 0) for name in ("argument", "output", "temp", "generated_code"))
        return needed - self.memory.get("alias", 0)


def rehearse_compile(request: RehearsalRequest) -> RehearsalResult:
    """Compile `request.module` in a child process.

    Raises:
        UserError: jax or its CUDA plugin is missing or too old; the module, target, topology, profile or a flag is
            refused; XLA fails or crashes (with XLA's own line).
    """
    _check(request)
    began = time.perf_counter()
    folder = request.dump_dir.resolve()
    answer = _run_worker(request, folder)
    for by_product in (path for path in folder.iterdir() if path.suffix in CODE_GENERATION):
        by_product.unlink()
    log = folder / LOG
    if "user_error" in answer:
        error = answer["user_error"]
        raise UserError(error["what"], where=error["where"] or request.module, remedy=error["remedy"])
    name = answer["module_name"]
    after = _dump(folder, name, "gpu_after_optimizations.hlo.pb")
    if "xla_error" in answer:
        line = answer["xla_error"].strip().partition("\n")[0]
        raise UserError(f"XLA could not compile it: {line}", where=request.module, remedy=f"the whole log: {log}")
    if after is None:
        raise UserError(
            f"XLA left no scheduled module {name} ({answer.get('stopped_by', 'no error')})",
            where=request.module,
            remedy=f"see the log: {log}",
        )
    return RehearsalResult(
        module_name=name,
        num_partitions=answer["num_partitions"],
        after_optimizations=after,
        before_optimizations=_dump(folder, name, "before_optimizations.hlo.pb"),
        schedule=_schedule(folder, name),
        log=log,
        fingerprint=fingerprint_of(after),
        compile_s=answer["compile_s"],
        start_s=answer["start_s"],
        wall_s=time.perf_counter() - began,
        memory=answer["memory"],
        stopped_for_toolkit=answer["stopped_for_toolkit"],
        jaxlib=answer["jaxlib"],
    )


def fingerprint_of(dump: Path) -> str:
    """The ``fingerprint_before_lhs`` of an HloProto dump, empty where it has none.

    Read off the raw bytes of the map entry (key field 1, value field 2), so that a dump of any size costs one search.
    """
    found = _FINGERPRINT.search(read_bytes(dump))
    return found[1].decode() if found else ""


def matches_job(result: RehearsalResult, job: Path | str) -> bool:
    """Whether a rehearsal compiled to the fingerprint of the job that wrote the module.

    Args:
        result: of a rehearsal with the job's target, topology and flags.
        job: the job's fingerprint (32 hexadecimal digits), or its ``*_gpu_after_optimizations.hlo.pb`` dump.

    Raises:
        UserError: the dump has no fingerprint.
    """
    if isinstance(job, str) and re.fullmatch(r"[0-9a-f]{32}", job):
        return result.fingerprint == job
    path = Path(job)
    wanted = fingerprint_of(path)
    if not wanted:
        raise UserError("holds no fingerprint", where=path, remedy="give the *_gpu_after_optimizations.hlo.pb dump")
    return result.fingerprint == wanted


def xla_flags(request: RehearsalRequest, folder: Path) -> str:
    """The XLA_FLAGS of the child; the request's own flags come last and so win."""
    flags = [f"--xla_dump_to={folder}", *EVIDENCE_FLAGS]
    if request.profile is not None and request.profile_as == "flag":
        flags.append(f"{PROFILE_FLAG}={request.profile.resolve()}")
    return " ".join(_quoted(flag) for flag in [*flags, *request.flags])


def _check(request: RehearsalRequest) -> None:
    if not request.module.exists():
        raise UserError("no such file", where=request.module, remedy="check the path")
    if request.dump_dir.is_dir() and any(request.dump_dir.iterdir()):
        raise UserError("is not empty", where=request.dump_dir, remedy="choose a new folder")
    if request.topology is not None and not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", request.topology):
        raise UserError(
            f"topology {request.topology!r} is not SLICESxHOSTSxDEVICES",
            remedy="write 1x1x8 for one host with eight GPUs",
        )
    for flag in request.flags:
        if not flag.startswith("--"):
            raise UserError(f"XLA flag {flag!r} does not begin with --", remedy="write --name=value")


def _run_worker(request: RehearsalRequest, folder: Path) -> dict[str, Any]:
    began = time.perf_counter()
    write_files(
        {
            folder / REQUEST: json.dumps(
                {
                    "module": str(request.module.resolve()),
                    "target": request.target,
                    "portable_target": request.portable_target,
                    "topology": request.topology,
                    "fdo_profile": str(request.profile.resolve())
                    if request.profile is not None and request.profile_as == "option"
                    else None,
                },
                indent=1,
            )
        },
        force=True,
    )
    # The child may be another Python, without pgle: ours comes last on its path, so that nothing is shadowed.
    root = str(Path(pgle.__file__).resolve().parent.parent)
    start = f"import sys; sys.path.append({root!r}); from pgle.run.rehearse.worker import main; main(sys.argv[1:])"
    log = folder / LOG
    try:
        with log.open("wb") as stream:
            done = subprocess.run(
                [request.python, "-c", start, str(folder / REQUEST)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=_environment(request, folder),
                timeout=request.timeout_s,
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise UserError(
            f"not compiled after {request.timeout_s:g} s", where=request.module, remedy=f"see the log: {log}"
        ) from None
    except OSError as error:
        raise UserError(f"cannot start Python ({error.strerror})", where=request.python) from None
    if (folder / RESULT).exists():
        found: dict[str, Any] = json.loads((folder / RESULT).read_text())
        return found
    rescued = _scheduled_before_crash(folder, time.perf_counter() - began)
    if rescued is None:
        raise crash(done.returncode, log, request.flags)
    return rescued


def _scheduled_before_crash(folder: Path, wall_s: float) -> dict[str, Any] | None:
    """The answer of a child that crashed in code generation without a CUDA toolkit (0.12.0.1 may), else None.

    Scheduling is done by then, and dumped.
    """
    if not (folder / STARTED).exists() or not NO_TOOLKIT.search((folder / LOG).read_text(errors="replace")):
        return None
    answer: dict[str, Any] = json.loads((folder / STARTED).read_text())
    if _dump(folder, answer["module_name"], "gpu_after_optimizations.hlo.pb") is None:
        return None
    return answer | {"stopped_for_toolkit": True, "compile_s": wall_s - answer["start_s"]}


def _environment(request: RehearsalRequest, folder: Path) -> dict[str, str]:
    """The child's environment: ours without what would change the compilation."""
    drop = ("XLA_FLAGS", "TF_CPP_", "TF_XLA_", "JAX_", "LIBTPU_INIT_ARGS")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(drop)}
    return kept | {
        "XLA_FLAGS": xla_flags(request, folder),
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_CPP_VMODULE": request.vmodule,
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",  # a GPU that is there is left alone
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        # Without it the plugin prints a traceback about missing CUDA libraries, which a rehearsal does not need.
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
    }


def _quoted(flag: str) -> str:
    """A flag as XLA_FLAGS wants it: a value with blanks in quotes."""
    name, equals, value = flag.partition("=")
    if not re.search(r"\s", value):
        return flag
    quote = '"' if "'" in value else "'"
    return f"{name}{equals}{quote}{value}{quote}"


def _dump(folder: Path, name: str, ending: str) -> Path | None:
    """The dump of module `name`, not of its fusion sub-modules; XLA may trim a trailing ``_`` in file names."""
    wanted = {name, name.rstrip("_")}
    return _newest(
        path
        for path in folder.glob(f"module_*{ending}")
        if (parts := path.name.split(".", 1)) and any(parts[1].startswith(f"{known}.") for known in wanted)
    )


def _schedule(folder: Path, name: str) -> Path | None:
    """The schedule dump of module `name`; releases through 0.5.0 name it after the entry computation, ``main.N``."""
    dumps = list(folder.glob("*.schedule.*"))
    stems = {path: path.name.rpartition(".schedule.")[0] for path in dumps}
    exact = [path for path in dumps if stems[path] in (name, name.rstrip("_"))]
    return _newest(exact or [path for path in dumps if re.match(r"main\.\d+", stems[path])])


def _newest(paths: Iterable[Path]) -> Path | None:
    return max(paths, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
