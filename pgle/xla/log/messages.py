"""Other wordings in logs: why XLA ended, what AutoPGLE did, what went wrong with a profiler or
nsys.

`pgle.xla.log.read` has the wordings about the use of a profile, and explains the releases listed
with a wording.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from pgle.next import DOCTOR
from pgle.xla.log.read import WORDINGS, LineKind

SCHEDULER_MEMORY = re.compile(
    r"LatencyHidingScheduler current memory usage: (\d+) bytes\. Current limit: (\d+)"
)
"""Bytes that the schedule needs, and bytes that the scheduler may use (0.10.2, 0.12.0.1)."""

Refusal: TypeAlias = Literal["unknown", "bad-value"]


def flag_refusal(text: str) -> tuple[Refusal, str] | None:
    """Return how a process refused a flag in XLA_FLAGS, and XLA's own words; None if it refused
    none.

    An unknown flag takes precedence: it is fatal in every release, a bad value only from 0.4.31 on.
    """
    found: dict[Refusal, str] = {}
    rules = [
        wording.pattern for wording in WORDINGS if wording.kind is LineKind.FLAG_REFUSED
    ]
    for line in text.splitlines():
        text = line.split("] ", 1)[-1].strip()
        if any(rule.search(text) for rule in rules):
            how: Refusal = "unknown" if text.startswith("Unknown") else "bad-value"
            words = "Flag parsing failed." if "Flag parsing failed" in text else text
            if how not in found or found[how] == "Flag parsing failed.":
                found[how] = words
    return next(
        ((how, found[how]) for how in ("unknown", "bad-value") if how in found), None
    )


FATAL = re.compile(
    r"^F\d{4} .*?\] (?P<abseil>.*)$|^[-\d]+ [\d:.]+: F .*?\] (?P<tsl>.*)$", re.MULTILINE
)
"""A line with which XLA ends the process."""


EMPTY_TRACE = "PGLE collected an empty trace"
"""A line of JAX's AutoPGLE (0.4.31 and newer). The rest of the line names CUPTI's error as one
possible cause.
"""
AUTO_PGLE = {
    "recompiled": r"Compiling module (\S+) with FDO profile of length (\d+)",
    "loaded": r"PGLE-optimized (\S+) loaded from compilation cache",
    "missed": r"PERSISTENT CACHE MISS for PGLE-optimized (\S+)",
    "hits": r"Persistent compilation cache hit for '(\S+)'",
}
"""Lines of jax's compiler about AutoPGLE, within the program (0.4.31 to 0.12), with the module's
name and for ``recompiled`` the bytes of the costs. ``missed``: JAX expected AutoPGLE's executable
in its cache (0.5.1 and newer).
"""
PGLE_CACHE_WRITE = re.compile(
    r"PERSISTENT CACHE WRITE with key \S+ this is unexpected|CACHE WRITE .*EXPECT_PGLE"
)

PROFILER_TROUBLE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED|CUPTI_ERROR_HARDWARE_BUSY"
            r"|CUPTI.*\balready (?:subscribed|in use|initialized)"
            "|max(?:imum)? limit (?:of subscribers )?reached"
            r"|CUPTI.*(?:error|code)[^0-9]{0,10}39\b"
        ),
        "another profiler (nsys, DCGM, AutoPGLE) holds CUPTI, so the trace has no GPU activities; "
        "stop it, or use --capture nsys",
    ),
    (
        re.compile(
            r"CUPTI_ERROR_(?:VIRTUALIZED_DEVICE_)?INSUFFICIENT_PRIVILEGES|ERR_NVGPUCTRPERM"
            r"|CUPTI.*(?:insufficient privileges|permission denied)",
            re.IGNORECASE,
        ),
        "the driver lets only administrators profile; load the nvidia module with "
        f"NVreg_RestrictProfilingToAdminUsers=0 (see '{DOCTOR}')",
    ),
    (
        re.compile(
            r"Another profiling session (?:is )?active|Only one profile may be run at a time"
        ),
        "two profiler sessions in one process; one of them was lost",
    ),
    (
        re.compile(
            r"\bdropped (?:\d+ )?(?:events|records|CUPTI|activit)|(?:events|records"
            "|activities) (?:were )?dropped",
            re.I,
        ),
        "the profiler dropped events, so some costs are missing; trace a shorter --window",
    ),
    (
        re.compile(
            "[Cc]ould not (?:load|find|open).*libcupti"
            r"|libcupti\.so\S*: cannot open|[Uu]nable to (?:load|find).*libcupti"
            "|libcupti.*(?:not found|could not be (?:loaded|found))"
            "|[Ff]ailed to load.*(?:libcupti|CUPTI)"
        ),
        "CUPTI's library was not found, so the trace has no GPU activities; install it "
        "(pip install nvidia-cuda-cupti, of the CUDA version of jaxlib) or add its "
        "folder to LD_LIBRARY_PATH",
    ),
    (
        re.compile(
            "CUPTI_ERROR_NOT_COMPATIBLE|CUPTI_ERROR_LEGACY_PROFILER_NOT_SUPPORTED"
            "|CUPTI_ERROR_OLD_PROFILER"
            "|CUPTI.*version (?:mismatch|is (?:too old|not compatible))|(?:Loaded"
            "|runtime).*CUPTI.*but .*compiled with"
        ),
        "CUPTI and the driver, or jaxlib, are of different versions; install the "
        "CUPTI of jaxlib's CUDA, "
        "or a newer driver",
    ),
    (
        re.compile(r"CUPTI_ERROR_(?:OUT_OF_MEMORY|MAX_LIMIT_REACHED)"),
        "CUPTI ran out of memory for its records; trace a shorter --window, or lower "
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
    ),
    (
        re.compile(r"CUPTI_ERROR_MIG_DEVICE_NOT_SUPPORTED|CUPTI.*\bMIG\b"),
        "CUPTI cannot profile this MIG instance; profile on a whole GPU",
    ),
    (
        re.compile(
            r"CUPTI_ERROR_(?:VIRTUALIZED|WSL|CMP|SLI|CONFIDENTIAL_COMPUTING)\w*NOT_SUPPORTED"
            r"|CUPTI.*\b[Vv]irtualized (?:GPU|device)"
        ),
        (
            "CUPTI cannot profile this virtual or restricted GPU; profile on a GPU "
            "that the machine owns"
        ),
    ),
    (
        re.compile(
            r"\bCUPTI_ERROR_(?!MULTIPLE_SUBSCRIBERS|HARDWARE_BUSY|INSUFFICIENT"
            "|VIRTUALIZED|NOT_COMPATIBLE"
            "|LEGACY_PROFILER|OLD_PROFILER|OUT_OF_MEMORY|MAX_LIMIT|MIG_|WSL_|CMP_"
            r"|SLI_|CONFIDENTIAL)\w+"
            "|CUPTI.*(?:initiali[sz]ation|activation|subscription) failed"
            "|[Ff]ailed to (?:initialize|start) CUPTI"
        ),
        (
            "CUPTI did not start, so the trace may have no GPU activities; try "
            f"--capture nsys (see '{DOCTOR}')"
        ),
    ),
    (
        re.compile(r"nv-hostengine|DCGM.*(?:conflict|in use|profiling)", re.I),
        "DCGM profiles these GPUs as well; pause it with 'dcgmi profile --pause'",
    ),
)
"""Lines of profilers that disturb each other, do not start or lose data; each with its meaning.

CUPTI's codes: https://docs.nvidia.com/cupti/api/group__CUPTI__RESULT__API.html. CUPTI has one
subscriber before CUDA 13.2.
"""
SLOW_FOLDING = b"Constant folding an instruction is taking"
"""XLA computes a constant of the module at compile time, which may take minutes (all releases). ``>
1s``, ``> 2s`` … follows.
"""
NSYS_FAILED = re.compile(
    "^(?:Importer error|Unable to retrieve the importer|.*FATAL ERROR|Error:"
    r"|std::exception::what:|\[boost::errinfo_)"
)
"""The beginnings of lines in which `nsys profile` says why there is no report."""
NSYS_FAILED_WORDS = (b"error", b"unable", b"exception", b"errinfo")
"""Every line that `NSYS_FAILED` matches holds one of these, in small letters."""
NSYS_NOT_READY = re.compile(
    r"^\S*ProcessWaiterImpl\.cpp\(\d+\): Throw in function .*(?:\n.+)*= sem_open",
    re.MULTILINE,
)
"""The message of nsys (2022.4) if its agent looks for the program's semaphore before the launcher
has made it.

The launcher's child then still waits for the signal to start the program, so the program has not
run.
"""
PROFILER_WORDS = (
    b"cupti",
    b"maximum limit",
    b"max limit",
    b"nvgpuctrperm",
    b"profil",
    b"dropped",
    b"nv-hostengine",
    b"dcgm",
    b"pgle",
)
"""Every line that `PROFILER_TROUBLE` or `EMPTY_TRACE` matches holds one of these, in small
letters.
"""
