"""Records XLA's logs of one program under right and wrong profiles: `python record.py PYTHON MODULE.mlir OUT`.

PYTHON is the interpreter whose jax compiles. What does not bear on profiles is cut out, folders are shortened.
"""

import io
import re
import sys
import tempfile
from pathlib import Path

from pgle.errors import UserError
from pgle.run.compiler.compile import CompileRequest, compile_once
from pgle.run.compiler.worker import LOG
from pgle.xla.log.read import LineKind, read_events
from pgle.xla.targets import load_target

LHS = "--xla_gpu_enable_latency_hiding_scheduler=true"
NO_LHS = "--xla_gpu_enable_latency_hiding_scheduler=false"
STRICT = "--xla_gpu_pgle_accuracy_checker=PGLE_STRICTNESS_LEVEL_ERROR"
NOISE = re.compile(
    r"cudart_stub|ptxas|subprocess_compilation|shardy|GpuTargetConfigProto|error when writing|^\s*$"
)


class Recorder:
    """Compiles one module again and again, and keeps the logs."""

    def __init__(self, python: str, module: Path, out: Path, folder: Path) -> None:
        self.python, self.module, self.out, self.folder = python, module, out, folder
        self.target = load_target("a100-40gb")

    def record(
        self, case: str, *flags: str, profile: Path | None = None
    ) -> tuple[str, str]:
        """Compile, keep the log as ``case.log``; returns the whole log and the fingerprint."""
        dump = self.folder / case
        request = CompileRequest(
            self.module, self.target.texts, dump, flags=flags or (LHS,), profile=profile
        )
        failed = fingerprint = ""
        try:
            fingerprint = compile_once(request, self.python).fingerprint
        except UserError as error:
            failed = re.sub(
                r".*XLA could not compile it: (.*?); the whole log.*",
                r"XlaRuntimeError: \1\n",
                str(error),
            )
        log = (dump / LOG).read_text(errors="replace")
        kept = [
            line for line in log.splitlines(keepends=True) if not NOISE.search(line)
        ]
        text = "".join(kept) + (failed if failed.startswith("Xla") else "")
        text = text.replace(f"{self.folder}/", "").replace(
            str(Path(sys.prefix)), "/venv"
        )
        (self.out / f"{case}.log").write_text(
            re.sub(r"at \S*/(jax_plugins/)", r"at /venv/\1", text)
        )
        return log, fingerprint


def missing_names(log: str) -> list[str]:
    """The names that the step lists as missing, which with an empty profile are all there are."""
    names: dict[str, list[str]] = {}
    module = ""
    for event in read_events(io.BytesIO(log.encode())):
        if event.kind is LineKind.FOUND_PROFILE:
            module = event.module
        elif event.kind is LineKind.MISSING_NAME:
            names.setdefault(module, []).append(event.subject)
    return sorted(
        names.get("jit_train_step") or names[""]
    )  # no module name before 0.7.0


def costs(names: list[str], prefix: str = "") -> str:
    """A profile that gives each name another cost."""
    return "".join(
        f'costs {{ name: "{prefix}{name}" cost_us: {10 + i} }}\n'
        for i, name in enumerate(names)
    )


def main(python: str, module: str, out: str) -> None:
    """Record every case of README.md."""
    Path(out).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recorder = Recorder(python, Path(module), Path(out), folder)
        profiles = folder / "profiles"
        profiles.mkdir()

        def profile(file: str, text: str) -> Path:
            (profiles / file).parent.mkdir(exist_ok=True)
            (profiles / file).write_text(text)
            return profiles / file

        log, fingerprint = recorder.record("empty", profile=profile("empty.pbtxt", ""))
        names = missing_names(log)
        full = profile("full.pbtxt", costs(names))
        half = profile("half.pbtxt", costs(names[::2]))
        profile(f"directory/{fingerprint}.pbtxt", costs(names))
        recorder.record("used", profile=full)
        recorder.record("half", profile=half)
        recorder.record("directory", profile=profiles / "directory")
        recorder.record("lhs_unset", "--xla_dump_hlo_as_text=false", profile=full)
        recorder.record("lhs_false", NO_LHS, profile=full)
        recorder.record("no_profile", LHS)
        recorder.record("wrong_path", profile=profiles / "missing.pbtxt")
        recorder.record("wrong_extension", profile=profile("profile.txt", costs(names)))
        recorder.record(
            "wrong_fingerprint",
            profile=profile("wrong.pbtxt", costs(names, "0" * 32 + "::")),
        )
        recorder.record("text_in_pb", profile=profile("text.pb", costs(names)))
        recorder.record(
            "syntax_error", profile=profile("syntax.pbtxt", "costs { name: ")
        )
        recorder.record("checker_error", LHS, STRICT, profile=half)
        recorder.record("unknown_flag", LHS, "--xla_gpu_no_such_flag=1", profile=full)


if __name__ == "__main__":
    main(*sys.argv[1:])
