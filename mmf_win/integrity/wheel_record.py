"""The list that every wheel carries of its files and their hashes.

https://packaging.python.org/specifications/recording-installed-packages/#the-record-file
"""

from __future__ import annotations

import base64
import csv
from pathlib import Path

from mmf_win.integrity.digest import file_digest


def read_record(record: Path) -> dict[str, str]:
    """The identity of each file of a wheel, by its path relative to the folder the wheel is unpacked in.

    A file without a hash is left out; that is RECORD itself, which cannot contain its own.

    Raises:
        OSError: the list cannot be read.
        ValueError: it is not such a list.
    """
    with record.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    if any(len(row) != 3 for row in rows):
        raise ValueError(f"{record} is not the RECORD of a wheel")
    return {path: identity for path, identity, _ in rows if identity}


def record_identity(path: Path) -> str:
    """The identity of a file as a RECORD of today writes it: ``sha256=`` and unpadded URL-safe Base64.

    Raises:
        OSError: the file cannot be read.
    """
    return "sha256=" + base64.urlsafe_b64encode(file_digest(path)).rstrip(b"=").decode()
