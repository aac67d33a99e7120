"""Manifests, which coreutils can read too, and IDs that equal those of git."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mmf_win.errors import DamagedManifestError
from mmf_win.files import read_json, write_json
from mmf_win.integrity.digest import file_digest, git_object_id, git_tree_id
from mmf_win.integrity.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestEntry,
    ManifestSource,
    load_manifest_notes,
    manifest_files,
)
from mmf_win.integrity.verify import find_damage, record_hashes
from tests.worlds.memes import Files, write_tree
from tests.worlds.mmf_sources import TREE, TREE_ID
from tests.worlds.tools import requires_tool, run_program

FILES: Files = {"detectron.lmdb/data.mdb": bytes(range(256)) * 40, "с пробелом/文件.txt": b"x", "empty": b""}
ODD: Files = {**FILES, "new\nline": b"1", "back\\slash": b"2", "return\r": b"3", " *": b"4"}


@pytest.fixture
def folder(user_dir: Path) -> Path:
    return write_tree(FILES, user_dir / "files")


def entries(files: Files) -> dict[str, ManifestEntry]:
    return {name: ManifestEntry(hashlib.sha256(content).hexdigest(), len(content)) for name, content in files.items()}


def test_saved_manifest_is_loaded_unchanged(folder: Path) -> None:
    source = ManifestSource("features.tar.gz", 123, 456, "", "0" * 64)
    written = replace(record_hashes(folder, FILES), hash_origin="archive", source=source)
    written.save()
    read = Manifest.load(folder)
    assert read == written
    assert read.files == entries(FILES)
    assert (read.hash_origin, read.source, read.stamps) == ("archive", source, written.stamps)


def test_unrecorded_folder_has_no_manifest(user_dir: Path) -> None:
    assert Manifest.load(user_dir) is None
    assert Manifest.load(user_dir / "no such folder") is None


@requires_tool("sha256sum")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
def test_sha256sum_reads_a_manifest_with_special_names(user_dir: Path) -> None:
    folder = write_tree(ODD, user_dir / "files")
    record_hashes(folder, ODD)
    run_program("sha256sum", "--check", "--strict", "--quiet", MANIFEST_NAME, cwd=folder)


@requires_tool("sha256sum")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
@pytest.mark.parametrize("mode", ["--text", "--binary"])
def test_output_of_sha256sum_is_read_as_recorded_hashes(mode: str, user_dir: Path) -> None:
    folder = write_tree(ODD, user_dir / "files")
    result = subprocess.run(["sha256sum", mode, *ODD], cwd=folder, check=True, capture_output=True)
    (folder / MANIFEST_NAME).write_bytes(result.stdout)
    manifest = Manifest.load(folder)
    assert manifest is not None
    assert {name: entry.sha256 for name, entry in manifest.files.items()} == {
        name: entry.sha256 for name, entry in entries(ODD).items()
    }
    assert (manifest.hash_origin, manifest.source, manifest.stamps) == ("recorded", None, {})


@pytest.mark.skipif(sys.platform != "linux", reason="Windows and macOS have no such names")
def test_name_that_is_not_utf8_is_preserved(user_dir: Path) -> None:
    name = b"\xff\xfe.bin".decode("utf-8", "surrogateescape")
    folder = write_tree({name: b"x"}, user_dir / "files")
    record_hashes(folder, [name])
    manifest = Manifest.load(folder)
    assert manifest is not None and list(manifest.files) == [name]
    assert (folder / MANIFEST_NAME).read_bytes().endswith(b"  \xff\xfe.bin\n")


def test_manifest_saved_by_a_windows_editor_is_read(folder: Path) -> None:
    record_hashes(folder, FILES)
    text = (folder / MANIFEST_NAME).read_bytes()
    (folder / MANIFEST_NAME).write_bytes(b"# by hand\r\n\r\n" + text.replace(b"\n", b"\r\n"))
    manifest = Manifest.load(folder)
    assert manifest is not None and manifest.files.keys() == FILES.keys()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"no hash", "not in sha256sum format"),
        (b"0" * 63 + b"  short", "not in sha256sum format"),
        (b"0" * 64 + b"  zeros\0\0", "not in sha256sum format"),
        (b"0" * 64 + b"  ../outside", "leaves the folder"),
        (b"0" * 64 + b"  /etc/passwd", "leaves the folder"),
    ],
)
def test_damaged_manifest_is_reported_with_its_line(line: bytes, reason: str, user_dir: Path) -> None:
    (user_dir / MANIFEST_NAME).write_bytes(b"0" * 64 + b"  good\n" + line + b"\n")
    with pytest.raises(DamagedManifestError, match=f"{MANIFEST_NAME}:2: .*{reason}") as caught:
        Manifest.load(user_dir)
    assert "delete this file" in str(caught.value.hint)


@pytest.mark.parametrize("notes", [None, b"", b"{", b"[]", b'{"format": 99}', b"\xff", "of another list"])
def test_manifest_without_notes_has_no_stamps(notes: bytes | str | None, folder: Path) -> None:
    replace(record_hashes(folder, FILES), hash_origin="published").save()
    sums, path = manifest_files(folder)
    if isinstance(notes, bytes):
        path.write_bytes(notes)
    elif notes is None:
        path.unlink()
    else:
        sums.write_bytes(b"# changed\n" + sums.read_bytes())
    manifest = Manifest.load(folder)
    assert manifest is not None and manifest.files.keys() == FILES.keys()
    assert (manifest.hash_origin, manifest.stamps) == ("recorded", {})


@pytest.mark.parametrize(("name", "value"), [("checks", None), ("checks", {"empty": [1]}), ("sizes", 7)])
def test_damaged_stamps_or_sizes_keep_the_source(name: str, value: object, folder: Path) -> None:
    source = ManifestSource("features.tar.gz", 123, 456, "", "0" * 64)
    replace(record_hashes(folder, FILES), hash_origin="published", source=source).save()
    _, notes = manifest_files(folder)
    write_json(notes, {**read_json(notes), name: value})
    manifest = Manifest.load(folder)
    assert manifest is not None
    assert (manifest.hash_origin, manifest.source, manifest.stamps) == ("published", source, {})
    assert find_damage(manifest) == []
    assert manifest.stamps.keys() == FILES.keys()


def test_source_ignores_later_fields_and_requires_its_own(folder: Path) -> None:
    source = ManifestSource("features.tar.gz", 123, 456, "", "0" * 64)
    replace(record_hashes(folder, FILES), hash_origin="published", source=source).save()
    _, path = manifest_files(folder)
    notes = read_json(path)
    write_json(path, {**notes, "source": {**notes["source"], "later": 1}})
    manifest = Manifest.load(folder)
    assert manifest is not None and (manifest.hash_origin, manifest.source) == ("published", source)
    del notes["source"]["size"]
    write_json(path, notes)
    with pytest.raises(DamagedManifestError, match=rf"{path.name}: .*size"):
        Manifest.load(folder)
    assert load_manifest_notes(folder) is None


def test_stamps_are_not_saved_for_a_replaced_manifest(folder: Path) -> None:
    old = record_hashes(folder, FILES)
    write_tree({"empty": b"no more"}, folder)
    new = replace(record_hashes(folder, FILES), hash_origin="archive")
    new.save()
    old.save_stamps()
    assert Manifest.load(folder) == new


def test_failed_write_leaves_no_manifest(small_disk: Path) -> None:
    folder = write_tree(FILES, small_disk / "files")
    names = {f"{number:05}-{'n' * 200}": b"" for number in range(400)}
    write_tree(names, folder)
    with (small_disk / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError) as full:
        while True:
            filler.write(bytes(4096))
    with pytest.raises(OSError) as caught:
        record_hashes(folder, [*FILES, *names])
    assert caught.value.errno == full.value.errno
    assert not [path for path in folder.iterdir() if path.name.startswith(MANIFEST_NAME)]


_MODES = {"file": "100644", "program": "100755", "link": "120000"}


def test_progress_is_reported_in_bytes(user_dir: Path) -> None:
    (user_dir / "big").write_bytes(b"x" * 3_000_000)
    pieces: list[int] = []
    file_digest(user_dir / "big", progress=pieces.append)
    assert sum(pieces) == 3_000_000
    assert len(pieces) > 1


def test_git_tree_id_is_independent_of_file_order() -> None:
    assert git_object_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert git_tree_id({}) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    seen = {path: (_MODES[file.kind], git_object_id(file.content)) for path, file in TREE.items()}
    assert git_tree_id(seen) == git_tree_id(dict(reversed(seen.items()))) == TREE_ID


@requires_tool("git")
def test_tree_id_equals_that_of_git(tmp_path: Path) -> None:
    def ask(*arguments: str, text: bytes = b"") -> str:
        result = subprocess.run(["git", *arguments], cwd=tmp_path, input=text, check=True, capture_output=True)
        return result.stdout.decode().strip()

    ask("init", "-q")
    for path, file in TREE.items():
        blob = ask("hash-object", "-w", "--stdin", text=file.content)
        ask("update-index", "--add", "--cacheinfo", f"{_MODES[file.kind]},{blob},{path}")
    assert ask("write-tree") == TREE_ID
