"""Ids are those that git gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mmf_win.integrity.git_tree import GitFile, Mode, blob_id, file_blob_id, tree_id
from tests.worlds.mmf_sources import TREE, TREE_ID, File
from tests.worlds.tools import requires_tool

_MODES: dict[str, Mode] = {"file": "100644", "program": "100755", "link": "120000"}


def _seen_by_git(files: dict[str, File]) -> dict[str, GitFile]:
    return {path: GitFile(_MODES[file.kind], blob_id(file.content)) for path, file in files.items()}


def test_an_empty_file_and_an_empty_tree_have_the_ids_everybody_knows() -> None:
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert tree_id({}) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


@pytest.mark.parametrize("files", [TREE, dict(reversed(TREE.items()))], ids=["in order", "in another order"])
def test_a_tree_has_the_id_that_git_gave_it(files: dict[str, File]) -> None:
    assert tree_id(_seen_by_git(files)) == TREE_ID


def test_a_file_on_disk_has_the_id_of_its_content(tmp_path: Path) -> None:
    content = b"\r\n" * (1 << 20)
    (tmp_path / "f").write_bytes(content)
    assert file_blob_id(tmp_path / "f") == blob_id(content)


@requires_tool("git")
def test_git_agrees(tmp_path: Path) -> None:
    def ask(*arguments: str, text: bytes = b"") -> str:
        done = subprocess.run(["git", *arguments], cwd=tmp_path, input=text, check=True, capture_output=True)
        return done.stdout.decode().strip()

    ask("init", "-q")
    for path, file in TREE.items():
        blob = ask("hash-object", "-w", "--stdin", text=file.content)
        ask("update-index", "--add", "--cacheinfo", f"{_MODES[file.kind]},{blob},{path}")
    assert ask("write-tree") == TREE_ID
