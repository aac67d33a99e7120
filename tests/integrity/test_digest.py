"""The hash of a file is told in pieces, and ids are those that git gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

from mmf_win.integrity.digest import file_digest, git_id, git_tree_id
from tests.worlds.mmf_sources import TREE, TREE_ID
from tests.worlds.tools import requires_tool

_MODES = {"file": "100644", "program": "100755", "link": "120000"}


def test_progress_is_told_in_bytes(user_dir: Path) -> None:
    (user_dir / "big").write_bytes(b"x" * 3_000_000)
    pieces: list[int] = []
    file_digest(user_dir / "big", progress=pieces.append)
    assert sum(pieces) == 3_000_000
    assert len(pieces) > 1


def test_a_tree_has_the_id_that_git_gave_it_in_whatever_order_its_files_come() -> None:
    assert git_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert git_tree_id({}) == "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
    seen = {path: (_MODES[file.kind], git_id(file.content)) for path, file in TREE.items()}
    assert git_tree_id(seen) == git_tree_id(dict(reversed(seen.items()))) == TREE_ID


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
