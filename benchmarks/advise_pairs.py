"""Published pairs of times, before and after one change of a program, and what pgle predicts.

    python benchmarks/advise_pairs.py FOLDER --page docs/evidence/advise-pairs.md
    python benchmarks/advise_pairs.py FOLDER --table --short docs/advise.md

Each pair of `PAIRS` was published by somebody else. Its program is `programs/advise_pair.py`, with
the words of the pair; both variants are compiled twice and priced, as `pgle advise` does. A pair
whose file is in FOLDER is not computed again: repeat the command to continue. Nothing is fitted.
--page and --short replace the table of a page between its marks.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from compiled_step import opened

from pgle.errors import UserError, WorkloadError
from pgle.files import write_files
from pgle.report import text
from pgle.report.page import figures
from pgle.run.compiler.session import Session
from pgle.run.rehearse_program import RehearseRequest
from pgle.schedule.control import other_choice

PROGRAM = Path(__file__).parent / "programs" / "advise_pair.py"
MISS = 0.10  # of the time after the change: predicted farther off than this is a miss
US_PER_MS = 1e3


@dataclass(frozen=True)
class Pair:
    """A published pair, and the program that stands for it."""

    name: str
    source: str  # Markdown: who published it
    change: str  # what was changed
    target: str
    published: str  # as it was published: before → after
    ratio: float  # published time after, over before
    words: str  # of the program, before
    after: str  # words that replace some of those
    devices: int = 1

    @property
    def variants(self) -> dict[str, str]:
        """The words of the program before and after."""
        return {"before": self.words, "after": _with(self.words, self.after)}


AXLEARN = (
    "[apple/axlearn](https://github.com/apple/axlearn/blob/0963792/"
    "axlearn/common/flash_attention/gpu_attention_benchmark.py)"
)
FLASH_2 = "[arXiv 2307.08691](https://arxiv.org/abs/2307.08691), table 1"
MEGATRON = "[arXiv 2205.05198](https://arxiv.org/abs/2205.05198), table 4"
FUSED = "attention: unfused → cuDNN"
CUDNN = "kernel=cudnn"
HALF = "kernel=half"  # scores in 16 bits, as the published unfused attention keeps them
GPT3_1_3B = "model layers=24 width=2048 heads=16 head=128 vocabulary=50304"
GPT3_2_7B = "model layers=32 width=2560 heads=20 head=128 vocabulary=50304"


def _plain(what: str) -> str:
    """Words as a part of a file's name."""
    return "-".join(re.findall(r"[\w.]+", what.replace(",", "").replace("×", "x")))


def _axlearn(what: str, words: str, before: float, after: float) -> Pair:
    """A row of axlearn's table, in ms."""
    return Pair(
        name=f"axlearn-{_plain(what)}",
        source=AXLEARN,
        change=f"{FUSED} ({what})",
        target="h100",
        published=f"{before:.3f} → {after:.3f} ms",
        ratio=after / before,
        words=f"attention {words} {HALF}",
        after=CUDNN,
    )


def _flash_2(what: str, words: str, before: int, after: int) -> Pair:
    """A row of the table of FlashAttention-2, in TFLOP/s of a GPU."""
    return Pair(
        name=f"flash2-{_plain(what)}",
        source=FLASH_2,
        change=f"{FUSED} (GPT-3 {what})",
        target="a100-80",
        published=f"{before} → {after} TFLOP/s",
        ratio=before / after,
        words=f"{words} {HALF}",
        after=f"{CUDNN} remat=none",
        devices=8,
    )


PAIRS = (
    _axlearn("gradient, 4,096 × 128", "batch=2 queries=4096", 10.700160, 1.955680),
    _axlearn("gradient, 1,024 × 128", "batch=2 queries=1024", 0.883040, 0.237632),
    _axlearn("gradient, 256 × 128", "batch=2 queries=256", 0.092320, 0.052928),
    _axlearn(
        "gradient, 4,096 × 64", "batch=2 queries=4096 head=64", 10.279040, 1.270880
    ),
    _axlearn(
        "forward, 4,096 × 128", "batch=2 queries=4096 gradient=0", 3.570368, 0.452832
    ),
    _axlearn(
        "gradient, mask as bias, 8,192",
        "batch=1 queries=8192 heads=4 bias=1",
        2.481056,
        1.625088,
    ),
    _axlearn(
        "decoding, 1 × 131,072",
        "batch=1 queries=1 keys=131072 heads=8 causal=0 gradient=0 dtype=bfloat16",
        0.229856,
        1.558464,
    ),
    _axlearn(
        "decoding, 32 × 8,192",
        "batch=32 queries=1 keys=8192 heads=8 causal=0 gradient=0 dtype=bfloat16",
        0.442080,
        0.365152,
    ),
    Pair(
        name="transformer-engine-window",
        source="[TransformerEngine](https://nvidia.github.io/TransformerEngine/"
        "examples/jax/attention_single_gpu.html)",
        change=f"{FUSED} (gradient, window of 128 in 4,096)",
        target="gb200",
        published="about 52 × as fast",
        ratio=1 / 52,
        words="attention batch=2 queries=4096 heads=128 groups=8 window=128 "
        "dtype=bfloat16",
        after=CUDNN,
    ),
    _flash_2("1.3B, 2k", f"{GPT3_1_3B} batch=2 length=2048", 142, 196),
    _flash_2("1.3B, 8k", f"{GPT3_1_3B} batch=1 length=8192 remat=core", 72, 220),
    _flash_2("2.7B, 2k", f"{GPT3_2_7B} batch=1 length=2048", 149, 205),
    _flash_2("2.7B, 8k", f"{GPT3_2_7B} batch=1 length=8192 remat=core", 80, 225),
    Pair(
        name="neox-1.3B",
        source="[EleutherAI/gpt-neox#725](https://github.com/EleutherAI/gpt-neox/"
        "pull/725)",
        change=f"{FUSED} (GPT 1.3B)",
        target="a100-80",
        published="130 → 180 TFLOP/s",
        ratio=130 / 180,
        words=f"{GPT3_1_3B} batch=2 length=2048 {HALF}",
        after=CUDNN,
    ),
    Pair(
        name="paxml-5B",
        source="[google/paxml#73](https://github.com/google/paxml/pull/73)",
        change=f"{FUSED} (GPT-3 5B)",
        target="h100",
        published="about 30 % faster",
        ratio=1 / 1.3,
        words="model layers=24 width=4096 heads=32 head=128 batch=4 length=2048 "
        f"sharded=1 remat=layer {HALF}",
        after=CUDNN,
        devices=8,
    ),
    Pair(
        name="onnxruntime-bert",
        source="[microsoft/onnxruntime#13953]"
        "(https://github.com/microsoft/onnxruntime/pull/13953)",
        change=f"{FUSED} (BERT base, forward, 128 × 512)",
        target="a100",
        published="133.38 → 79.53 ms",
        ratio=79.53 / 133.38,
        words="model layers=12 width=768 heads=12 head=64 batch=128 length=512 "
        f"causal=0 train=0 loop=unrolled {HALF}",
        after=CUDNN,
    ),
    Pair(
        name="megatron-full",
        source=MEGATRON,
        change="remat: none → the whole layer (22B, tensor parallel 8)",
        target="a100-80",
        published="19.6 → 27.2 ms",
        ratio=27.2 / 19.6,
        words=f"layer {HALF}",
        after="remat=layer",
        devices=8,
    ),
    Pair(
        name="megatron-selective",
        source=MEGATRON,
        change="remat: none → the attention (22B, tensor parallel 8)",
        target="a100-80",
        published="19.6 → 20.9 ms",
        ratio=20.9 / 19.6,
        words=f"layer {HALF}",
        after="remat=core",
        devices=8,
    ),
    Pair(
        name="jax-scan",
        source="[jax-ml/jax#13356](https://github.com/jax-ml/jax/issues/13356)",
        change="scan → layers written out (3 attention layers)",
        target="a100-80",
        published="scan takes about 15 % longer",
        ratio=1 / 1.15,
        words="projections",
        after="loop=unrolled",
    ),
    Pair(
        name="pytorch-tf32",
        source="[PyTorch, CUDA semantics]"
        "(https://docs.pytorch.org/docs/stable/notes/cuda.html)",
        change="precision: f32 → TF32 (a product of 10,240²)",
        target="a100",
        published="0.11 → 0.016 s",
        ratio=0.016 / 0.11,
        words="product size=10240",
        after="precision=tensorfloat32",
    ),
)


def main() -> None:
    """Compute the pairs that are missing, then write the table of all that are there."""
    options = _parser().parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for pair in PAIRS:
        place = _place(options.folder, pair)
        is_wanted = not options.pair or pair.name in options.pair
        if is_wanted and not place.exists() and not options.table:
            _compute(pair, place)
    found = dict(_records(options.folder))
    for page, columns in ((options.page, len(COLUMNS)), (options.short, SHORT)):
        if page:
            lines = "\n".join(_table(found, columns))
            write_files({page: _between_marks(page.read_text(), lines)}, force=True)


def _with(words: str, others: str) -> str:
    """Words of the program, with other values for some of them."""
    replaced = {word.partition("=")[0] for word in others.split()}
    kept = [word for word in words.split() if word.partition("=")[0] not in replaced]
    return " ".join((*kept, *others.split()))


def _place(folder: Path, pair: Pair) -> Path:
    return folder / f"{pair.name}.json"


def _records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for pair in PAIRS:
        place = _place(folder, pair)
        if place.exists():
            yield pair.name, json.loads(place.read_text())


def _compute(pair: Pair, place: Path) -> None:
    """Compile both variants of a pair, and record what they cost."""
    before = _cpu_s()
    record: dict[str, Any] = {"name": pair.name, "variants": {}}
    for variant, words in pair.variants.items():
        out = place.with_suffix("") / variant
        shutil.rmtree(out, ignore_errors=True)
        try:
            record["variants"][variant] = _priced(pair, words, out)
        except (UserError, WorkloadError) as error:
            record["failed"] = f"{variant}: {error}"
            break
    record["cpu_s"] = _cpu_s() - before
    write_files({place: text.as_json("advise-pair", record)})
    print(pair.name, f"{record['cpu_s']:.0f} CPU-s", flush=True)


def _priced(pair: Pair, words: str, out: Path) -> dict[str, Any]:
    """A variant's step in µs and its memory in bytes, by both compilations."""
    command = (sys.executable, str(PROGRAM), *words.split(), f"devices={pair.devices}")
    with opened(command, pair.target, pair.devices, out) as (request, session):
        return _steps(request, session)


def _steps(request: RehearseRequest, session: Session) -> dict[str, Any]:
    own = request.flags
    found: dict[str, Any] = {"jaxlib": version("jaxlib")}
    for name, flags in (("first", own), ("control", (*own, other_choice(own)))):
        try:
            compiled = session.schedule(name, flags)
        except UserError as error:
            found[name] = {"failed": str(error)}
            continue
        predicted = session.predicted(compiled)
        found[name] = {
            "step_us": predicted.step_us,
            "exposed_us": predicted.exposed_us,
            "lower_bound": predicted.lower_bound_why if predicted.lower_bound else "",
            "memory_bytes": compiled.memory_bytes or 0,
        }
    return found


@dataclass(frozen=True)
class Judged:
    """A pair beside its prediction."""

    pair: Pair
    # predicted, after over before, by each compilation; None: XLA failed
    ratios: tuple[float | None, float | None]
    steps_ms: tuple[float, float]  # before and after, by the first that compiled
    memory: tuple[int, int]  # bytes

    @property
    def compiled(self) -> list[float]:
        """The ratios of the compilations that did not fail."""
        return [ratio for ratio in self.ratios if ratio is not None]

    @property
    def off(self) -> float:
        """How far the worse compilation is off, as a share of the time after the change."""
        shares = (ratio / self.pair.ratio - 1 for ratio in self.compiled)
        return max(shares, key=abs)

    @property
    def has_sign(self) -> bool:
        """Whether all compilations change the step in the published direction."""
        published = self.pair.ratio - 1
        return all((ratio - 1) * published > 0 for ratio in self.compiled)

    @property
    def verdict(self) -> str:
        """What became of the prediction."""
        if not self.has_sign:
            return "**wrong sign**"
        return "held" if abs(self.off) <= MISS else "**missed**"


def _judged(pair: Pair, record: dict[str, Any]) -> Judged | None:
    """A pair whose two variants have the same compilation; None: neither has."""
    variants = [record["variants"].get(name, {}) for name in ("before", "after")]
    ratios: list[float | None] = []
    known = []
    for name in ("first", "control"):
        steps = [variant.get(name, {"failed": ""}) for variant in variants]
        if any("failed" in step for step in steps):
            ratios.append(None)
            continue
        known.append(steps)
        before, after = (step["step_us"] for step in steps)
        ratios.append(after / before)
    if not known:
        return None
    return Judged(
        pair,
        ratios=(ratios[0], ratios[1]),
        steps_ms=tuple(step["step_us"] / US_PER_MS for step in known[0]),
        memory=tuple(step["memory_bytes"] for step in known[0]),
    )


COLUMNS = (
    "published by",
    "change",
    "GPU",
    "published",
    "change of the time",
    "predicted",
    "control",
    "off by",
    "verdict",
    "predicted step (ms)",
    "memory (GiB)",
)
SHORT = 9  # columns of the table that docs/advise.md has


def _table(records: dict[str, dict[str, Any]], columns: int) -> Iterator[str]:
    """A row for each pair, the farthest off first; then what is missing."""
    judged = []
    failed = []
    missing = []
    for pair in PAIRS:
        record = records.get(pair.name)
        if record is None:
            missing.append(pair.name)
            continue
        item = _judged(pair, record)
        if item is None:
            failed.append(pair.name)
        else:
            judged.append(item)
    held = sum(item.verdict == "held" for item in judged)
    signs = sum(item.has_sign for item in judged)
    yield (
        f"Of {len(judged)} pairs both compilations have the sign of {signs}, "
        f"and the size of {held} within {MISS:.0%} of the time after the change."
    )
    if failed:
        yield f"Not compiled: {', '.join(failed)}."
    if missing:
        yield f"Not run: {', '.join(missing)}."
    yield ""
    yield f"| {' | '.join(COLUMNS[:columns])} |"
    yield "|---" * columns + "|"
    judged.sort(key=lambda item: (item.has_sign, -abs(item.off)))
    for item in judged:
        yield f"| {' | '.join(_cells(item)[:columns])} |"


def _cells(item: Judged) -> tuple[str, ...]:
    pair = item.pair
    steps = " → ".join(f"{step:,.2f}" for step in item.steps_ms)
    memory = " → ".join(f"{size / 2**30:,.1f}" for size in item.memory)
    count = f"{pair.devices} × " if pair.devices > 1 else ""
    changes = [_change(ratio) for ratio in (pair.ratio, *item.ratios)]
    what = (pair.source, pair.change, f"{count}{pair.target}", pair.published)
    judged = (figures.change(item.off), item.verdict)
    return (*what, *changes, *judged, steps, memory)


def _change(ratio: float | None) -> str:
    return figures.change(None if ratio is None else ratio - 1)


BEGIN = "<!-- benchmarks/advise_pairs.py -->"
END = "<!-- end of benchmarks/advise_pairs.py -->"


def _between_marks(page: str, lines: str) -> str:
    """A page with the lines between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{lines}\n\n{END}{after}"


def _cpu_s() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(kind) for kind in kinds]
    return sum(item.ru_utime + item.ru_stime for item in used)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of the results")
    parser.add_argument("--pair", nargs="+", default=[], help="only these")
    parser.add_argument("--table", action="store_true", help="compute nothing")
    parser.add_argument("--page", type=Path, help="it gets the table")
    parser.add_argument("--short", type=Path, help="it gets the first columns")
    return parser


if __name__ == "__main__":
    main()
