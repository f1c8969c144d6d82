"""What to do about a verdict, one sentence each."""

from __future__ import annotations

from enum import StrEnum


class Remedy(StrEnum):
    """A remedy; each names the next thing to type or to change."""

    FORMAT = (
        "the suffix decides: .pbtxt is text, .pb is binary; check it with `pgle show PROFILE`, "
        "rewrite it with `pgle merge PROFILE -o NEW.pbtxt`"
    )
    PATH = "give an absolute path: ~ is not expanded, and a relative one counts from the process's working directory"
    DIRECTORY = (
        "name a file in it after the module's fingerprint (`pgle convert … -o DIR/`), or give one .pbtxt file; "
        "disabled async collectives, combine thresholds and device count change fingerprints"
    )
    NOT_GIVEN = (
        "check --xla_gpu_pgle_profile_file_or_directory_path in XLA_FLAGS: the file must end in .pbtxt or .pb "
        "(other suffixes are ignored without a word)"
    )
    SILENT = (
        "set --xla_gpu_enable_latency_hiding_scheduler=true (an explicit false disables the profile since 0.11.2; "
        "unset does so before 0.5.1), and end the profile's name in .pbtxt or .pb"
    )
    CHECKER = "leave --xla_gpu_pgle_accuracy_checker at its default (…_WARN), and check coverage with `pgle verify`"
    PARTIAL = "see what is missing with `pgle verify PROFILE --hlo DUMP`, fill it with `pgle complete`"
    NO_NAMES = (
        "the profile is of another program, XLA version or fingerprint: compare with `pgle verify PROFILE --hlo DUMP`"
    )
    STALE = (
        "the profile comes from another compilation of this program: profile again with the flags and the jax of "
        "this run, and check with `pgle verify PROFILE --hlo DUMP`"
    )
    OTHER_MODULE = "normal for helper modules; for the main module see `pgle verify PROFILE --hlo DUMP`"
    OLD_XLA = (
        "say which jax it was (--jax 0.6.2), or run with "
        "XLA_FLAGS='--xla_dump_to=DIR --xla_dump_latency_hiding_schedule=true' and pass "
        "`--schedule DIR --profile PROFILE`"
    )
    CACHE = "compile again: JAX_ENABLE_COMPILATION_CACHE=false, or an empty JAX_COMPILATION_CACHE_DIR"
    LEVEL = (
        "set TF_CPP_MIN_LOG_LEVEL=0 in the environment before Python starts (JAX hides INFO lines), or pass --schedule"
    )
    EMPTY_TRACE = "another profiler, such as nsys, holds CUPTI: run `pgle auto` without it first"
    FLAG = "see `pgle flags lint`"
    MODULE = "choose another --module"
    WHOLE_LOG = "give the whole log of the run"
