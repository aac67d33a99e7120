"""Tiny copies of the Hateful Memes dataset, as name → content, in all layouts that users have.

The main layout is that of the release: a top folder with five labelled splits, a README and a licence; ids are
strings of five digits. In the first phase of the challenge, ids were numbers and the test split had no labels.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random

from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.integrity.manifest import MANIFEST_NAME

Files = dict[str, bytes]

PHASE_1_SPLITS = {"train": range(1, 7), "dev": range(7, 10), "test": range(10, 13)}
RUN_SPLITS = {"train": "train", "val": "dev", "test": "test"}
"""Splits of a run with the data of the first phase."""
RELEASE_SPLITS = {
    "train": range(1, 7),
    "dev_seen": range(7, 10),
    "dev_unseen": range(8, 12),  # as in the real dataset, some memes are in both
    "test_seen": range(12, 14),
    "test_unseen": range(14, 17),
}
TOP_FOLDER = "hateful_memes/"
PASSWORD = "пароль 密码"


def dataset_files(
    splits: Mapping[str, range] = RELEASE_SPLITS,
    *,
    top: str = TOP_FOLDER,
    image_folder: str = "img/",
    extra_files: bool = True,
) -> Files:
    """Return a dataset in which every row has an image."""
    files: Files = {}
    for split, ids in splits.items():
        rows = [_row(id_, split, first_phase=splits is PHASE_1_SPLITS) for id_ in ids]
        files[f"{top}{split}.jsonl"] = jsonl(rows)
        for id_ in ids:
            files[f"{top}{image_folder}{id_:05}.png"] = image(id_)
    if extra_files:
        files[f"{top}README.md"] = b"# A tiny set\n"
        files[f"{top}LICENSE.txt"] = b"Public domain.\n"
    return files


def without_images(files: Files, ids: Iterable[int]) -> Files:
    """Return the dataset like public copies: some images are missing, although the annotations name them."""
    missing_names = {f"{id_:05}.png" for id_ in ids}
    return {name: content for name, content in files.items() if name.rpartition("/")[2] not in missing_names}


def incomplete_dataset_files() -> tuple[Files, dict[str, list[int]]]:
    """Return a dataset with missing images, and their ids by split.

    Each split lacks as many images as in the most complete public copy, and most of their ids end in 8 or 9,
    as they do there. ``train`` is small and all rows with an image share one file, because writing thousands of
    files takes seconds.
    """
    sizes = {"train": 20, "dev_seen": 500, "dev_unseen": 540, "test_seen": 1000, "test_unseen": 2000}
    missing_counts = {"train": 0, "dev_seen": 102, "dev_unseen": 107, "test_seen": 0, "test_unseen": 407}
    files, missing_ids, first = {f"{TOP_FOLDER}img/00000.png": image(0)}, {}, 1
    for split, size in sizes.items():
        ids = range(first, first + size)
        missing_ids[split] = sorted(sorted(ids, key=lambda id_: id_ % 10, reverse=True)[: missing_counts[split]])
        rows = [
            _row(id_, split, first_phase=False) | ({} if id_ in missing_ids[split] else {"img": "img/00000.png"})
            for id_ in ids
        ]
        files[f"{TOP_FOLDER}{split}.jsonl"] = jsonl(rows)
        first += size
    return files, missing_ids


def with_packed_images(files: Files, *, name: str = f"{TOP_FOLDER}img.tar.gz") -> Files:
    """Return the dataset with its images packed in a separate tar.gz."""
    images = {n[n.index("img/") :]: content for n, content in files.items() if "/img/" in f"/{n}"}
    return {n: c for n, c in files.items() if "/img/" not in f"/{n}"} | {name: tar_gz(images)}


def make_encrypted_zip(path: Path, files: Files) -> Path:
    """Write a zip with the classic encryption, like the published one, with the password ``PASSWORD``."""
    write_encrypted_zip(path, files.items(), PASSWORD)
    return path


def mmf_layout(files: Files) -> Files:
    """Return the files at the paths where MMF expects them."""
    renamed_files = {}
    for name, content in files.items():
        if name.endswith(".jsonl"):
            renamed_files[f"annotations/{name.rpartition('/')[2]}"] = content
        elif name.endswith(".png"):
            renamed_files[f"images/img/{name.rpartition('/')[2]}"] = content
    return renamed_files


def jsonl(rows: list[dict[str, object]]) -> bytes:
    """Encode rows as an annotation file."""
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def image(id_: int) -> bytes:
    """Return a grey PNG of incompressible noise, always the same for an id."""
    rows = b"".join(b"\0" + Random(f"{id_}-{row}").randbytes(20) for row in range(20))
    chunks = {b"IHDR": struct.pack(">IIBBBBB", 20, 20, 8, 0, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def tar_gz(files: Files) -> bytes:
    """Return the files as a tar.gz."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)


def write_tree(files: Files, folder: Path) -> Path:
    """Write the files below ``folder`` and return the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def read_tree(folder: Path) -> Files:
    """Return all files below ``folder``, except manifests and files of mmfw itself."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.startswith((MANIFEST_NAME, ".mmfw"))
    }


def _row(id_: int, split: str, *, first_phase: bool) -> dict[str, object]:
    row: dict[str, object] = {"id": id_ if first_phase else f"{id_:05}", "img": f"img/{id_:05}.png"}
    if not (first_phase and split == "test"):
        row["label"] = id_ % 2
    return {**row, "text": f"мем № {id_} 梗"}
