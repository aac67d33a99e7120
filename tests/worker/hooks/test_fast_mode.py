"""Batches without padding that no text needs."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worlds.tools import LazyModule, requires_package

torch = LazyModule("torch")
fast_mode = LazyModule("mmf_win.worker.hooks.fast_mode")

pytestmark = [pytest.mark.torch, requires_package("torch")]


def make_batch(*lengths: int, padded_to: int = 32) -> dict[str, Any]:
    mask = torch.tensor([[1] * length + [0] * (padded_to - length) for length in lengths])
    ids = torch.arange(padded_to).repeat(len(lengths), 1) * mask
    features = torch.ones(len(lengths), padded_to, 5)
    return {"input_ids": ids, "input_mask": mask, "image_feature_0": features, "text": ["a"] * len(lengths)}


@pytest.mark.parametrize(("lengths", "expected"), [((3, 5), 8), ((7, 2), 8), ((8, 2), 16), ((30,), 32), ((32, 3), 32)])
def test_trimmed_texts_keep_one_column_of_padding_and_a_multiple_of_eight(
    lengths: tuple[int, ...], expected: int
) -> None:
    """The text of 8 tokens would lose its last column of padding, which MMBT takes as the end."""
    before = make_batch(*lengths)
    ids = before["input_ids"].clone()
    after = fast_mode.trim_padding(before)
    assert after["input_mask"].shape == after["input_ids"].shape == (len(lengths), expected)
    assert torch.equal(after["input_ids"], ids[:, :expected])
    assert not ids[:, expected:].any()
    assert after["image_feature_0"].shape == (len(lengths), 32, 5)
    assert after["text"] == ["a"] * len(lengths)


def test_batches_with_other_padding_are_unchanged() -> None:
    left = make_batch(3)
    left["input_mask"] = left["input_mask"].flip(1)
    assert fast_mode.trim_padding(left)["input_mask"].shape == (1, 32)
    assert fast_mode.trim_padding({"text": torch.ones(2, 20)})["text"].shape == (2, 20), "word vectors have no mask"
    assert fast_mode.trim_padding({"input_mask": torch.ones(2, 4, 8)})["input_mask"].shape == (2, 4, 8)
