"""The files that real commands once left on a disk, which every later version has to read.

``tests/worlds/stored`` has what tests/worlds/record_stored_files.py had them write, with placeholders for
paths. Checkpoints are small stand-ins, and the hashes of the real ones, where files tell them, are replaced
by those
of the stand-ins.
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
_FILES_WITHOUT_FIELDS = {"fits.json", "trusted.json"}  # whose keys are values
_HASH = re.compile(r"\b[0-9a-f]{64}\b")
_UNKNOWN_FIELDS = {"of_a_later_version": {"list": [1, None, "a"]}}


@dataclass
class StoredFiles:
    """The folders of a user, as commands left them.

    Attributes:
        root: holds the rest.
        hashes: those of the stand-ins for checkpoints → those of the real ones.
    """

    root: Path
    hashes: dict[str, str] = field(default_factory=dict)

    @property
    def save(self) -> Path:
        """The folder of the runs and sweeps."""
        return self.root / "save"

    @property
    def data(self) -> Path:
        """MMF's data folder, with a dataset that was converted."""
        return self.root / "data"

    @property
    def home(self) -> Path:
        """mmfw's own folder."""
        return self.root / "home"

    def run_folder(self, name: str) -> Path:
        """The folder of the only run of a name."""
        [path] = (self.save / name).iterdir()
        return path

    def find_files(self, *suffixes: str) -> list[Path]:
        """The files with one of these suffixes, in order."""
        return sorted(path for path in self.root.rglob("*") if path.suffix in suffixes)

    def normalize_text(self, text: str) -> str:
        """Return JSON with placeholders for paths, slashes, and the hashes of the real checkpoints."""
        if os.sep == "\\":
            text = text.replace("\\\\", "/")
        for shown in (json.dumps(self.root.as_posix())[1:-1], self.root.as_posix()):
            text = text.replace(shown, _ROOT_PLACEHOLDER)
        return _HASH.sub(lambda match: self.hashes.get(match[0], match[0]), text)

    def add_unknown_fields(self) -> None:
        """Have every record and event tell something more, as a later version may."""
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
        """Leave the events as a worker does that is killed while it writes."""
        for path in self.find_files(".jsonl"):
            if path.name == "events.jsonl":
                with path.open("ab") as file:
                    file.write(b'{"t": 1795897748.2, "kind": "train", "attempt": "1", "upd')

    def insert_event(self, run: str, line: str) -> None:
        """Have a run tell of one more event, before the last one."""
        path = self.run_folder(run) / "events.jsonl"
        *lines, last = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join([*lines, line, last, ""]), encoding="utf-8", newline="\n")

    def update_record(self, path: Path, **values: Any) -> None:
        """Change values of a record; names of files that are no UTF-8 are escaped, as mmfw does."""
        record = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(record | values, indent=2) + "\n", encoding="utf-8", newline="\n")


def build(root: Path) -> StoredFiles:
    """Make the files in ``root``, a folder that is made if need be."""
    stored = StoredFiles(root)
    hashes = {}
    for name, about in _read(_CHECKPOINTS_FILE).items():
        file = _write_stub_checkpoint(root / name, about)
        hashes[about["sha256"]] = hashlib.sha256(file.read_bytes()).hexdigest()
    stored.hashes = {fake: real for real, fake in hashes.items()}
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
    """Store files below ``root``, which real commands have just written.

    Args:
        root: the folder whose path becomes a placeholder.
        texts: name of the archive → its files.
        images: binary files.
        mmf: the folder of MMF, which becomes a placeholder, too.
    """
    STORED_DIR.mkdir(exist_ok=True)
    code = Path(__file__).parents[2]
    for archive, paths in texts.items():
        found = {}
        for path in sorted(paths):
            text = path.read_text(encoding="utf-8")
            for place, name in ((root, _ROOT_PLACEHOLDER), (mmf, _MMF_PLACEHOLDER), (code, _CODE_PLACEHOLDER)):
                text = text.replace(str(place), name)
            found[path.relative_to(root).as_posix()] = text.split("\n")
        _write(f"files-{archive}.json", found)
    _write(
        _IMAGES_FILE,
        {path.relative_to(root).as_posix(): base64.b64encode(path.read_bytes()).decode() for path in images},
    )


def store_checkpoints(root: Path, paths: list[Path]) -> None:
    """Store what stand-ins for real checkpoints have to tell."""
    import torch

    found = {}
    for path in sorted(paths):
        known = torch.load(path, weights_only=True)
        found[path.relative_to(root).as_posix()] = {
            "update": known["num_updates"],
            "epoch": known["current_epoch"],
            "best_update": known["best_update"],
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
    _write(_CHECKPOINTS_FILE, found)


def _read(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((STORED_DIR / name).read_text(encoding="utf-8"))
    return values


def _write(name: str, value: object) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    (STORED_DIR / name).write_text(text, encoding="utf-8", newline="\n")


def _fill_placeholders(text: str, root: Path, *, is_json: bool) -> str:
    for name, path in ((_ROOT_PLACEHOLDER, root), (_MMF_PLACEHOLDER, root / "mmf"), (_CODE_PLACEHOLDER, root / "code")):
        shown = json.dumps(str(path), ensure_ascii=False)[1:-1] if is_json else str(path)
        text = text.replace(name, shown)
    return text


def _write_stub_checkpoint(path: Path, values: dict[str, Any]) -> Path:
    """Write what can be read of a checkpoint without torch; two of them have the same bytes if they had."""
    best = {"best_update": values["best_update"], "best_iteration": values["best_update"]}
    counts = {"num_updates": values["update"], "current_epoch": values["epoch"], "best_metric_value": 0.5}
    config = {"env": {"save_dir": values["sha256"]}}
    write_torch_zip(path, {**counts, **best, "model": {}, "config": config}, bytes(100))
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(zipfile.ZipInfo(name), content)  # without a time
    return path
