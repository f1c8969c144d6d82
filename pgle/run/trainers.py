"""Settings of known trainers that change a step. The command line identifies the trainer.

Settings of MaxText are in `src/maxtext/configs/base.yml` (github.com/AI-Hypercomputer/maxtext,
release 0.2.5); its policies are also in `src/maxtext/layers/nnx_decoders.py`. Settings of Levanter
are fields of its models (github.com/marin-community/levanter, commit 9263f81e,
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
    """A trainer's setting and the values to try."""

    name: str
    values: tuple[str, ...]
    decides: str  # the kind of call sites that the setting controls
    rounds: bool = False  # whether the setting changes the rounding of results
    maker: Vendor | None = None  # vendor whose GPUs support the setting; None: all


@dataclass(frozen=True)
class Trainer:
    """A trainer that takes its settings from the command line."""

    command: re.Pattern[str]  # pattern of its script or module
    prefix: str  # prefix of setting names; with ``--`` the value is the next word
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
    """A setting with its value, as words of a command."""

    name: str  # with the prefix
    value: str
    rounds: bool

    @property
    def text(self) -> str:
        """The setting as a user types it."""
        between = " " if self.name.startswith("-") else "="
        return f"{self.name}{between}{self.value}"

    def within(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return a command with this setting. It replaces the old value, or follows the other
        words.
        """
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
    """Yield the settings to try on a vendor's GPUs, for the trainer that a command starts."""
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
    """Return the kinds of call sites that the command's words control; these sites are in the
    trainer's code.
    """
    found: set[str] = set()
    for trainer in _trainers_of(words):
        found.update(setting.decides for setting in trainer.settings)
    return found


def _trainers_of(words: Sequence[str]) -> Iterator[Trainer]:
    """Yield the trainers that a command starts, by module or by script."""
    programs = [word for word in words if word.endswith(".py")]
    for before, word in pairwise(words):
        if before == "-m":
            programs.append(word)
    for trainer in TRAINERS:
        if any(trainer.command.search(program) for program in programs):
            yield trainer
