"""Libraries that open files in C, in a folder whose name is in no code page of Windows.

The tests of lmdb, safetensors, tokenizers and TensorBoard are in other files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def read_torch_file(folder: Path) -> None:
    import torch

    path = folder / "модель.ckpt"
    torch.save({"a": torch.ones(3)}, path)
    for mapped in (False, True):
        assert torch.load(path, mmap=mapped, weights_only=True)["a"].sum() == 3


def read_matplotlib_font(folder: Path) -> None:
    from matplotlib import font_manager, get_data_path

    font = shutil.copy(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), folder / "шрифт.ttf")
    assert font_manager.get_font(font).family_name == "DejaVu Sans"


def read_image_and_font_with_pillow(folder: Path) -> None:
    from matplotlib import get_data_path
    from PIL import Image, ImageFont

    Image.new("RGB", (8, 6)).save(folder / "мем.png")
    with Image.open(folder / "мем.png") as picture:
        assert picture.size == (8, 6)
    font = shutil.copy(Path(get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), folder / "шрифт.ttf")
    assert ImageFont.truetype(str(font)).getname()[0] == "DejaVu Sans"


@pytest.mark.parametrize("open_files", [read_torch_file, read_matplotlib_font, read_image_and_font_with_pillow])
def test_libraries_open_files_in_folders_outside_the_code_page(
    user_dir: Path, open_files: Callable[[Path], None]
) -> None:
    open_files(user_dir)
    assert [path.name for path in user_dir.parent.iterdir()] == [user_dir.name], "no other file may be created"
