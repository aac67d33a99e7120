"""A dataset as mmfw 0.1.0 left it: with a record of sizes and CRC-32s, and a manifest if verified."""

from __future__ import annotations

import zlib
from dataclasses import asdict, replace

from mmf_win.files import write_json
from mmf_win.integrity.manifest import Manifest, manifest_files
from mmf_win.paths import DatasetPaths


def converted_by_0_1_0(dataset: DatasetPaths, *, verified: bool = False) -> None:
    """Make a dataset that was just converted one of mmfw 0.1.0."""
    manifest = Manifest.load(dataset.root)
    assert manifest is not None and manifest.source is not None
    contents = {name: manifest.path(name).read_bytes() for name in manifest.files}
    files = {name: [len(content), zlib.crc32(content)] for name, content in contents.items()}
    source = {**asdict(manifest.source), "path": None}
    write_json(
        dataset.old_record, {"format": 2, "source": source, "files": files, "result": dict(manifest.result)}
    )
    if verified:
        replace(manifest, result={}).save()
    else:
        for file in manifest_files(dataset.root):
            file.unlink()
