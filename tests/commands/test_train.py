"""What ``mmfw train`` prints without training."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.tools import Mmfw


def test_the_list_of_presets_names_the_split_of_each_number(mmfw: Mmfw) -> None:
    mmfw("train", "--list")
    header, *rows = mmfw.out.splitlines()
    for column in ("dev_seen acc", "dev_seen AUROC", "test_seen acc", "test_seen AUROC"):
        assert column in header
    [row] = [row for row in rows if row.startswith("vilbert_cc ")]
    assert row.split()[-5:-1] == ["61.40", "70.07", "61.10±1.56", "70.03±1.77"]
    assert "dev_seen and test_seen" in mmfw.err
    presets_told = {told["name"]: told["published"] for told in mmfw.json("train", "--list")}
    assert presets_told["vilbert_cc"]["dev_seen"] == {"accuracy": 61.4, "auroc": 70.07}
    assert presets_told["vilbert_cc"]["test_seen"]["auroc"] == [70.03, 1.77]
    assert presets_told["demo"] == {}


@pytest.mark.parametrize(
    ("name", "fit"),
    [
        ("..", "run"),
        ("", "run"),
        ("a/b", "a-b"),
        ("-x", "x"),
        ("lr=1", "lr-1"),
        ("nul", "_nul"),
        ("-nul", "_nul"),
    ],
)
def test_a_name_that_no_command_could_take_is_refused_with_one_that_fits(
    user_dir: Path, mmfw: Mmfw, name: str, fit: str
) -> None:
    words = ["train", "demo", "--data-dir", str(user_dir), "--name"]
    assert f"hint: --name {fit}\n" in mmfw(*words, name, code=2)
    mmfw(*words, fit, code=3)
