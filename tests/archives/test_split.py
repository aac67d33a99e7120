"""Parts of split archives are reported with the command that unpacks all of them."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from mmf_win.archives import open_archive
from mmf_win.errors import ArchiveError
from tests.worlds.archive_writers import unpack_all
from tests.worlds.memes import Files, read_tree, write_tree
from tests.worlds.tools import requires_tool, run_program, split_command

FILES: Files = {f"data/{name}": Random(name).randbytes(70_000) for name in ("a", "b", "c")}
TOOLS = {
    "zip -rq -s 64k a.zip data": "a.zip",
    "zip -rq -fz -s 64k a.zip data": "a.zip",  # Zip64
    "7z a -v64k -tzip a.zip data": "a.zip.001",
    "7z a -v64k a.7z data": "a.7z.001",
    "7z a -v64k -ttar a.tar data": "a.tar.001",
}


@requires_tool("zip", "7z")
@pytest.mark.parametrize("command", TOOLS)
def test_every_part_is_reported_with_the_command_to_unpack_all(command: str, user_dir: Path) -> None:
    write_tree(FILES, user_dir)
    (user_dir / "FOLDER").mkdir()
    run_program(*[f"../{w}" if w == "data" else w for w in command.split()], cwd=user_dir / "FOLDER")
    parts = sorted((user_dir / "FOLDER").glob("a.*"))
    assert len(parts) >= 4
    for part in parts:
        with pytest.raises(ArchiveError) as caught:
            open_archive(part)
        assert str(caught.value) == f"{part}: one part of a split archive"
        assert caught.value.hint is not None
        unpacking, converting = re.findall("`(.*?)`", caught.value.hint)
        assert (unpacking, converting) == (f"7z x {TOOLS[command]}", "mmfw convert FOLDER")
    run_program(*unpacking.split(), cwd=user_dir / "FOLDER")
    for part in parts:
        part.unlink()
    assert {name.partition("data/")[2]: data for name, data in read_tree(user_dir / "FOLDER").items()} == {
        name.removeprefix("data/"): data for name, data in FILES.items()
    }


@requires_tool("7z")
def test_single_part_with_the_complete_archive_is_read(user_dir: Path) -> None:
    write_tree(FILES, user_dir)
    run_program("7z", "a", "-v1m", "a.7z", "data", cwd=user_dir)
    assert unpack_all(user_dir / "a.7z.001", user_dir / "out") == FILES


def test_name_with_a_space_is_quoted(user_dir: Path) -> None:
    (user_dir / "my memes.7z.002").write_bytes(b"content of a middle part")
    with pytest.raises(ArchiveError) as caught:
        open_archive(user_dir / "my memes.7z.002")
    [command, _] = re.findall("`(.*?)`", caught.value.hint or "")
    assert split_command(command.removeprefix("7z "))[-1] == "my memes.7z.001"
