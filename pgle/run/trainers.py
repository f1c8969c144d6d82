"""Words of known trainers that change a step: what is tried of each, recognised by the command.

Settings of MaxText are in `src/maxtext/configs/base.yml` (github.com/AI-Hypercomputer/maxtext).
Those of Levanter are fields of its models (github.com/marin-community/levanter,
`src/levanter/models/llama.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pgle.xla.vendors import NVIDIA, Vendor


@dataclass(frozen=True)
class Setting:
    """A setting of a trainer and what is tried of it."""

    name: str
    values: tuple[str, ...]
    rounds: bool = False  # whether results are rounded otherwise
    maker: Vendor | None = None  # of the GPUs that have it; None: all


@dataclass(frozen=True)
class Trainer:
    """A trainer that is configured by words of its command."""

    command: re.Pattern[str]  # in a word of it
    prefix: str  # of a setting's name: ``--`` takes the value as the next word
    settings: tuple[Setting, ...]


TRAINERS = (
    Trainer(
        re.compile(r"\bmaxtext\b", re.IGNORECASE),
        "",
        (
            Setting("attention", ("cudnn_flash_jax",), rounds=True, maker=NVIDIA),
            Setting("remat_policy", ("minimal", "save_qkv_proj")),
            Setting("scan_layers", ("false",)),
        ),
    ),
    Trainer(
        re.compile(r"\blevanter\b"),
        "--",
        (
            Setting("model.attn_backend", ("nvte",), rounds=True, maker=NVIDIA),
            Setting("model.gradient_checkpointing", ("false",)),
            Setting("model.scan_layers", ("false",)),
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
    for trainer in TRAINERS:
        if not any(trainer.command.search(word) for word in words):
            continue
        for setting in trainer.settings:
            if setting.maker not in (None, vendor):
                continue
            for value in setting.values:
                name = trainer.prefix + setting.name
                found = TrainerWords(name, value, setting.rounds)
                if found.within(words) != tuple(words):
                    yield found
