"""Libraries that open files in C or Rust, in a folder whose name no code page of Windows holds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def lmdb_database(folder: Path) -> None:
    import lmdb

    database = folder / "база.lmdb"
    database.mkdir()  # lmdb itself would make it under another name
    with (
        lmdb.open(str(database), map_size=1 << 20, create=False) as environment,
        environment.begin(write=True) as changes,
    ):
        changes.put(b"key", b"value")
    with lmdb.open(str(database), readonly=True, lock=False) as environment, environment.begin() as read:
        assert read.get(b"key") == b"value"


def safetensors_file(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    save_file({"a": torch.ones(3)}, folder / "модель.safetensors")
    assert load_file(folder / "модель.safetensors")["a"].sum() == 3


def torch_file_in_memory_and_mapped(folder: Path) -> None:
    import torch

    path = folder / "модель.ckpt"
    torch.save({"a": torch.ones(3)}, path)
    for mapped in (False, True):
        assert torch.load(path, mmap=mapped, weights_only=True)["a"].sum() == 3


def tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece

    vocabulary = folder / "словарь.txt"
    vocabulary.write_text("[UNK]\na\n", encoding="utf-8")
    Tokenizer(WordPiece.from_file(str(vocabulary))).save(str(folder / "разбор.json"))
    assert Tokenizer.from_file(str(folder / "разбор.json")).encode("a").tokens == ["a"]


def curves_of_tensorboard(folder: Path) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "логи")) as writer:
        writer.add_scalar("loss", 0.5, 1)
    assert next((folder / "логи").iterdir()).stat().st_size > 0


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
    "opens",
    [
        lmdb_database,
        safetensors_file,
        torch_file_in_memory_and_mapped,
        tokenizer,
        curves_of_tensorboard,
        font_of_matplotlib,
        picture_and_font_of_pillow,
    ],
)
def test_a_library_opens_its_files_below_any_name(user_dir: Path, opens: Callable[[Path], None]) -> None:
    opens(user_dir)
    assert [path.name for path in user_dir.parent.iterdir()] == [user_dir.name], "nothing beside it"
