"""Libraries that open files in C, in a folder whose name no code page of Windows holds.

What lmdb, safetensors, tokenizers and TensorBoard open there is in the tests of those files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def torch_file_in_memory_and_mapped(folder: Path) -> None:
    import torch

    path = folder / "модель.ckpt"
    torch.save({"a": torch.ones(3)}, path)
    for mapped in (False, True):
        assert torch.load(path, mmap=mapped, weights_only=True)["a"].sum() == 3


def font_of_matplotlib(folder: Path) -> None:
    from matplotlib import font_manager, get_data_path

    font = shutil.copy(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), folder / "шрифт.ttf")
    assert font_manager.get_font(font).family_name == "DejaVu Sans"


def picture_and_font_of_pillow(folder: Path) -> None:
    from matplotlib import get_data_path
    from PIL import Image, ImageFont

    Image.new("RGB", (8, 6)).save(folder / "мем.png")
    with Image.open(folder / "мем.png") as picture:
        assert picture.size == (8, 6)
    font = shutil.copy(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), folder / "шрифт.ttf")
    assert ImageFont.truetype(str(font)).getname()[0] == "DejaVu Sans"


@pytest.mark.parametrize(
    "opens", [torch_file_in_memory_and_mapped, font_of_matplotlib, picture_and_font_of_pillow]
)
def test_a_library_opens_its_files_below_any_name(user_dir: Path, opens: Callable[[Path], None]) -> None:
    opens(user_dir)
    assert [path.name for path in user_dir.parent.iterdir()] == [user_dir.name], "nothing beside it"
