"""Generation of the files of ``mmfw demo``; run as ``python -m mmf_win.demo.generate FOLDER SEED MODEL``."""

from __future__ import annotations

import io
import logging
import pickle
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.console import Progress, show_log_messages
from mmf_win.demo import synthetic
from mmf_win.demo.folder import PASSWORD, DemoFolder
from mmf_win.errors import DataError, StoppedByUserError
from mmf_win.features import lmdb_file
from mmf_win.files import atomic_replace
from mmf_win.worker.tiny_models import write_bert, write_clip

_log = logging.getLogger("mmf_win.demo.generate")  # __name__ is __main__ if run as a program

_CLASS_COUNT = 1601  # classes of Visual Genome; the first is the background
_FEATURE_NORM = 40.0  # ViLBERT expects features of about this length
#: Sizes of the demo's BERT, repeated in its preset.
BERT_SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 32,
}
_CLIP_TOWER_SIZES = {name: BERT_SIZES[name] for name in ("hidden_size", "num_attention_heads", "intermediate_size")}
_CLIP_TOWER_SIZES |= {"num_hidden_layers": 1, "projection_dim": 32}
_CLIP_IMAGE_SIZES = {"image_size": 64, "patch_size": 16}  # pixels, as the preset resizes images


def main(path: Path, seed: int, model: str) -> int:
    """Generate the missing files and return the exit code; system errors are printed in one line."""
    with show_log_messages():
        try:
            _generate_missing_files(DemoFolder(path), seed, model)
        except KeyboardInterrupt:
            return StoppedByUserError.exit_code
        except OSError as error:
            _log.info("%s", error)
            return DataError.exit_code
    return 0


def _generate_missing_files(folder: DemoFolder, seed: int, model: str) -> None:
    """Generate the archive, and either features and a BERT or a CLIP, unless they exist.

    Files appear only when they are complete.
    """
    splits = synthetic.generate_memes(seed)
    memes = [meme for split in splits.values() for meme in split]
    if not folder.archive.exists():
        _log.info("creating a synthetic dataset of %d encrypted memes in %s …", len(memes), folder.path)
        count = len(memes) + len(splits) + 1
        members = _with_progress("drawing and encrypting", count, synthetic.archive_members(splits))
        write_encrypted_zip(folder.archive, members, PASSWORD)
    words = sorted({word for meme in memes for word in meme.text.split()})
    if model == "clip":
        if not (folder.clip / "tokenizer.json").exists():
            text = {**_CLIP_TOWER_SIZES, "max_position_embeddings": BERT_SIZES["max_position_embeddings"]}
            write_clip(folder.clip, words, seed, text, {**_CLIP_TOWER_SIZES, **_CLIP_IMAGE_SIZES})
        return
    if not folder.features.exists():
        images = ((meme.stem, meme.png) for meme in memes)
        write_features_archive(folder.features, _with_progress("describing regions", len(memes), images))
    if not (folder.bert / "vocab.txt").exists():
        write_bert(folder.bert, words, seed, **BERT_SIZES)


def _with_progress(title: str, total: int, items: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    with Progress(title, total, "image") as progress:
        for item in items:
            yield item
            progress.advance(1)


def make_feature_record(stem: str, image: bytes) -> dict[str, Any]:
    """Return MMF's record of region features of an image.

    The features replace those of Detectron, which needs a trained network and a GPU: the share of each of
    2048 colours in the image and in its four quarters.

    Args:
        stem: File name of the image without its suffix.
        image: Content of the image file.

    Returns:
        ``features`` float32 ``[5, 2048]``, ``bbox`` float32 ``[5, 4]`` in pixels, and further keys.
    """
    pixels = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"))
    height, width = pixels.shape[:2]
    x, y = width // 2, height // 2
    # The complete image is first, because ViLBERT pools the first region; then its quarters.
    boxes = [(0, 0, width, height), (0, 0, x, y), (x, 0, width, y), (0, y, x, height), (x, y, width, height)]
    regions = [pixels[top:bottom, left:right] for left, top, right, bottom in boxes]
    background = np.zeros((len(boxes), _CLASS_COUNT), dtype=np.float32)
    background[:, 0] = 1
    return {
        "feature_path": stem,
        "features": np.stack([_colour_histogram(region) for region in regions]),
        "bbox": np.array(boxes, dtype=np.float32),
        "num_boxes": len(boxes),
        "objects": np.zeros(len(boxes), dtype=np.int64),
        "cls_prob": background,
        "image_width": width,
        "image_height": height,
    }


def write_features_archive(path: Path, images: Iterable[tuple[str, bytes]]) -> None:
    """Write a ``features.tar.gz`` with ``detectron.lmdb``, as MMF downloads it; it is complete or absent.

    An existing archive is replaced; ``images`` are the arguments of :func:`make_feature_record`.
    """
    records = [(stem, pickle.dumps(make_feature_record(stem, image))) for stem, image in images]
    size = lmdb_file.min_map_size(len(records), sum(len(record) for _, record in records))
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mmfw-") as staging:
        folder = Path(staging, "detectron.lmdb")
        lmdb_file.write_lmdb(folder, records, size)
        # Level 1 is fast, and higher levels save little.
        with atomic_replace(path) as temporary, tarfile.open(temporary, "w:gz", compresslevel=1) as archive:
            archive.add(folder, folder.name)


def _colour_histogram(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the frequencies of 2048 colours: four bits of red, four of green, three of blue."""
    red, green, blue = (pixels[..., channel].astype(np.int64) for channel in range(3))
    counts = np.bincount(((red >> 4) << 7 | (green >> 4) << 3 | blue >> 5).ravel(), minlength=2048)
    # The square root gives small objects more weight and all vectors the same length.
    colours: np.ndarray[Any, np.dtype[np.float32]] = np.sqrt(counts / counts.sum(), dtype=np.float32)
    colours *= _FEATURE_NORM
    return colours


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
