"""Which of a step's data is its batch."""

from __future__ import annotations

import pytest

from pgle.account.levers.batch_rows import DataArray, batch_among

IMAGES = DataArray("images", "f32", (256, 32, 32, 3))
LABELS = DataArray("labels", "s32", (256,))
TARGETS = DataArray("targets", "f32", (256, 10))
TOKENS = DataArray("tokens", "s32", (256, 128))
FROZEN = DataArray("frozen", "bf16", (4096, 4096))
IN_8_BITS = DataArray("frozen", "s8", (4096, 4096))
POSITIONS = DataArray("positions", "s32", (1024,))
PIXELS = DataArray("pixels", "u8", (256, 32, 32, 3))


@pytest.mark.parametrize("words", [2, 4], ids=["threefry", "rbg"])
def test_a_random_key_is_no_batch(words: int) -> None:
    key = DataArray("key", "u32", (words,))
    assert batch_among([key]) is None
    assert batch_among([key, IMAGES, TARGETS]) is IMAGES


@pytest.mark.parametrize("frozen", [FROZEN, IN_8_BITS], ids=["bf16", "s8"])
def test_a_frozen_weight_is_no_batch(frozen: DataArray) -> None:
    assert batch_among([frozen, IMAGES, TARGETS]) is None
    assert batch_among([frozen, TOKENS]) is TOKENS


def test_labels_are_as_long_as_the_images() -> None:
    assert batch_among([FROZEN, LABELS, IMAGES]) is LABELS
    assert batch_among([LABELS, PIXELS]) is LABELS


def test_positions_are_no_batch() -> None:
    assert batch_among([POSITIONS, IMAGES]) is None
    assert batch_among([POSITIONS, TOKENS]) is TOKENS


def test_integers_alone_are_the_batch() -> None:
    assert batch_among([LABELS, DataArray("words", "s32", (256,))]) is LABELS
