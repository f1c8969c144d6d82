"""Words of known trainers that change a step: what is tried of each, recognised by the command.

Settings of MaxText are in `src/maxtext/configs/base.yml` (github.com/AI-Hypercomputer/maxtext,
release 0.2.5); its policies also in `src/maxtext/layers/nnx_decoders.py`. Those of Levanter are
fields of its models (github.com/marin-community/levanter, commit 9263f81e,
`src/levanter/models/llama.py`), and backends of `src/levanter/layers/attention.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pgle.xla.vendors import NVIDIA, Vendor


@dataclass(frozen=True)
class Setting:
    """A setting of a trainer and what is tried of it."""

    name: str
    values: tuple[str, ...]
    decides: str  # the kind of call sites that it decides
    rounds: bool = False  # whether results are rounded otherwise
    maker: Vendor | None = None  # of the GPUs that have it; None: all


@dataclass(frozen=True)
class Trainer:
    """A trainer that is configured by words of its command."""

    command: re.Pattern[str]  # in the script or module of it
    prefix: str  # of a setting's name: ``--`` takes the value as the next word
    settings: tuple[Setting, ...]


_MAXTEXT_POLICIES = ("minimal", "minimal_with_context", "save_qkv_proj")

TRAINERS = (
    Trainer(
        re.compile(r"\bmaxtext\b", re.IGNORECASE),
        "",
        (
            Setting(
                "attention",
                ("cudnn_flash_jax",),
                "attention",
                rounds=True,
                maker=NVIDIA,
            ),
            Setting("remat_policy", _MAXTEXT_POLICIES, "remat"),
            Setting("scan_layers", ("false",), "unroll"),
        ),
    ),
    Trainer(
        re.compile(r"\blevanter\b"),
        "--",
        (
            Setting(
                "model.attn_backend", ("nvte",), "attention", rounds=True, maker=NVIDIA
            ),
            Setting("model.gradient_checkpointing", ("false",), "remat"),
            Setting("model.scan_layers", ("false",), "unroll"),
        ),
    ),
)


@dataclass(frozen=True)
class TrainerWords:
    """A setting with a value, as words of a command."""

    name: str  # with its prefix
    value: str
    rounds: bool

    @property
    def text(self) -> str:
        """As it is typed."""
        between = " " if self.name.startswith("-") else "="
        return f"{self.name}{between}{self.value}"

    def within(self, words: Sequence[str]) -> tuple[str, ...]:
        """A command with this setting in place of the one that it has, or after its words."""
        kept: list[str] = []
        is_value = False
        for word in words:
            if is_value:
                is_value = False
            elif word == self.name:
                is_value = True
            elif not word.startswith(f"{self.name}="):
                kept.append(word)
        return (*kept, *self.text.split(" "))


def settings_of(words: Sequence[str], vendor: Vendor) -> Iterator[TrainerWords]:
    """What is tried on a vendor's GPUs of the trainer that a command starts."""
    for trainer in _trainers_of(words):
        for setting in trainer.settings:
            if setting.maker not in (None, vendor):
                continue
            for value in setting.values:
                name = trainer.prefix + setting.name
                found = TrainerWords(name, value, setting.rounds)
                if sorted(found.within(words)) != sorted(words):
                    yield found


def decided_by(words: Sequence[str]) -> set[str]:
    """Kinds of call sites that words of a command decide: the sites are the trainer's own."""
    found: set[str] = set()
    for trainer in _trainers_of(words):
        found.update(setting.decides for setting in trainer.settings)
    return found


def _trainers_of(words: Sequence[str]) -> Iterator[Trainer]:
    """The trainers that a command starts: by a module, or by a script."""
    programs = [word for word in words if word.endswith(".py")]
    for before, word in pairwise(words):
        if before == "-m":
            programs.append(word)
    for trainer in TRAINERS:
        if any(trainer.command.search(program) for program in programs):
            yield trainer
