"""Files that commands of an earlier version have written, and that each later version has to read.

``tests/worlds/stored`` contains the files that tests/worlds/record_stored_files.py has recorded, with placeholders
for paths. Checkpoints are replaced by small stubs. In the other files, the hashes of the real checkpoints are
replaced by the hashes of the stubs.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.worlds.torch_files import write_torch_zip

STORED_DIR = Path(__file__).with_name("stored")
_IMAGES_FILE, _CHECKPOINTS_FILE = "images.json", "checkpoints.json"
_ROOT_PLACEHOLDER = "@ROOT@"
_MMF_PLACEHOLDER = "@MMF@"
_CODE_PLACEHOLDER = "@CODE@"
_FILES_WITHOUT_FIELDS = {"fits.json", "trusted.json"}  # their keys are data, not field names
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_UNKNOWN_FIELDS = {"of_a_later_version": {"list": [1, None, "a"]}}


@dataclass
class StoredFiles:
    """Folders of a user with files that commands have written.

    Attributes:
        root: Folder of all files.
        hashes: Hash of each checkpoint stub → hash of the real checkpoint.
    """

    root: Path
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def save(self) -> Path:
        """Return the folder of the runs and sweeps."""
        return self.root / "save"

    @property
    def data(self) -> Path:
        """Return MMF's data folder, which contains a converted dataset."""
        return self.root / "data"

    @property
    def home(self) -> Path:
        """Return the home folder of mmfw."""
        return self.root / "home"

    def run_folder(self, name: str) -> Path:
        """Return the folder of the only run with this name."""
        [path] = (self.save / name).iterdir()
        return path

    def find_files(self, *suffixes: str) -> list[Path]:
        """Return the files with one of these suffixes, sorted by path."""
        return sorted(path for path in self.root.rglob("*") if path.suffix in suffixes)

    def normalize_text(self, text: str) -> str:
        """Return a JSON text with placeholders for paths, forward slashes, and the hashes of the real checkpoints."""
        if os.sep == "\\":
            text = text.replace("\\\\", "/")
        for root_text in (json.dumps(self.root.as_posix())[1:-1], self.root.as_posix()):
            text = text.replace(root_text, _ROOT_PLACEHOLDER)
        return _HASH.sub(lambda match: self.hashes.get(match[0], match[0]), text)

    def add_unknown_fields(self) -> None:
        """Add an unknown field to each record and event, as a later version may."""
        for path in self.find_files(".json", ".jsonl"):
            if path.name in _FILES_WITHOUT_FIELDS or "annotations" in path.parts:
                continue
            text = path.read_text(encoding="utf-8")
            if path.suffix == ".jsonl":
                text = "".join(json.dumps(json.loads(line) | _UNKNOWN_FIELDS) + "\n" for line in text.splitlines())
            else:
                text = json.dumps(_UNKNOWN_FIELDS | json.loads(text), indent=2) + "\n"
            path.write_text(text, encoding="utf-8", newline="\n")

    def tear_last_lines(self) -> None:
        """Append an incomplete line to each event log, like a worker that is killed while it writes."""
        for path in self.find_files(".jsonl"):
            if path.name == "events.jsonl":
                with path.open("ab") as file:
                    file.write(b'{"t": 1795897748.2, "kind": "train", "attempt": "1", "upd')

    def insert_event(self, run: str, line: str) -> None:
        """Insert an event before the last one of a run."""
        path = self.run_folder(run) / "events.jsonl"
        *lines, last = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join([*lines, line, last, ""]), encoding="utf-8", newline="\n")

    def update_record(self, path: Path, **values: Any) -> None:
        """Change values of a record; file names that are not UTF-8 are escaped, as mmfw does."""
        record = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(record | values, indent=2) + "\n", encoding="utf-8", newline="\n")


def build(root: Path) -> StoredFiles:
    """Write the files to ``root``, which is created if necessary."""
    stored = StoredFiles(root)
    hashes = {}
    for name, values in _read(_CHECKPOINTS_FILE).items():
        file = _write_stub_checkpoint(root / name, values)
        hashes[values["sha256"]] = hashlib.sha256(file.read_bytes()).hexdigest()
    stored.hashes = {stub: real for real, stub in hashes.items()}
    for archive in sorted(STORED_DIR.glob("files-*.json")):
        for name, lines in _read(archive.name).items():
            text = _fill_placeholders("\n".join(lines), root, is_json=name.endswith((".json", ".jsonl")))
            text = _HASH.sub(lambda match: hashes.get(match[0], match[0]), text)
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
    for name, content in _read(_IMAGES_FILE).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
    return stored


def store_files(root: Path, texts: dict[str, list[Path]], images: list[Path], mmf: Path) -> None:
    """Store files below ``root`` that commands have just written.

    Args:
        root: Folder whose path is replaced by a placeholder.
        texts: Name of the archive → its files.
        images: Binary files.
        mmf: Folder of MMF, whose path is also replaced by a placeholder.
    """
    STORED_DIR.mkdir(exist_ok=True)
    code = Path(__file__).parents[2]
    for archive, paths in texts.items():
        archive_lines = {}
        for path in sorted(paths):
            text = path.read_text(encoding="utf-8")
            for folder, placeholder in ((root, _ROOT_PLACEHOLDER), (mmf, _MMF_PLACEHOLDER), (code, _CODE_PLACEHOLDER)):
                text = text.replace(str(folder), placeholder)
            archive_lines[path.relative_to(root).as_posix()] = text.split("\n")
        _write(f"files-{archive}.json", archive_lines)
    _write(
        _IMAGES_FILE,
        {path.relative_to(root).as_posix(): base64.b64encode(path.read_bytes()).decode() for path in images},
    )


def store_checkpoints(root: Path, paths: list[Path]) -> None:
    """Store the values of real checkpoints that their stubs must have."""
    import torch

    stub_values = {}
    for path in sorted(paths):
        checkpoint = torch.load(path, weights_only=True)
        stub_values[path.relative_to(root).as_posix()] = {
            "update": checkpoint["num_updates"],
            "epoch": checkpoint["current_epoch"],
            "best_update": checkpoint["best_update"],
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    _write(_CHECKPOINTS_FILE, stub_values)


def _read(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((STORED_DIR / name).read_text(encoding="utf-8"))
    return values


def _write(name: str, value: object) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    (STORED_DIR / name).write_text(text, encoding="utf-8", newline="\n")


def _fill_placeholders(text: str, root: Path, *, is_json: bool) -> str:
    for name, path in ((_ROOT_PLACEHOLDER, root), (_MMF_PLACEHOLDER, root / "mmf"), (_CODE_PLACEHOLDER, root / "code")):
        path_text = json.dumps(str(path), ensure_ascii=False)[1:-1] if is_json else str(path)
        text = text.replace(name, path_text)
    return text


def _write_stub_checkpoint(path: Path, values: dict[str, Any]) -> Path:
    """Write the part of a checkpoint that is read without torch; stubs of equal checkpoints are equal."""
    best = {"best_update": values["best_update"], "best_iteration": values["best_update"]}
    counts = {"num_updates": values["update"], "current_epoch": values["epoch"], "best_metric_value": 0.5}
    config = {"env": {"save_dir": values["sha256"]}}
    write_torch_zip(path, {**counts, **best, "model": {}, "config": config}, bytes(100))
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # with a constant time
    return path
