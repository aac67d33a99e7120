"""Names of members: normalization, rejected names and collisions."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import py7zr
import pytest

from mmf_win.archives import open_archive
from mmf_win.archives.names import find_name_collisions, find_name_problem, safe_name
from mmf_win.errors import ArchiveError
from tests.worlds import hostile_archives

LONGEST_AND_DEEPEST = "/".join([*127 * ["x" * 31], "x" * 32])
"""Name of 4096 characters in 127 folders."""


@pytest.mark.parametrize(
    ("raw", "safe"),
    [
        ("data/img/01235.png", "data/img/01235.png"),
        ("./data//img/./01235.png", "data/img/01235.png"),
        ("data\\img\\01235.png", "data/img/01235.png"),
        ("Мемы/梗 图.png", "Мемы/梗 图.png"),
        ("a..b/...c", "a..b/...c"),
        (LONGEST_AND_DEEPEST, LONGEST_AND_DEEPEST),
    ],
)
def test_harmless_names_become_portable_posix_paths(raw: str, safe: str) -> None:
    assert safe_name(raw) == safe
    assert find_name_problem(safe) is None


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("/etc/passwd", "absolute"),
        ("\\windows\\win.ini", "absolute"),
        ("C:/windows/win.ini", "drive"),
        ("c:win.ini", "drive"),
        ("//server/share/x", "network"),
        ("\\\\server\\share\\x", "network"),
        ("../x", "leaves"),
        ("data/../../x", "leaves"),
        ("data\\..\\x", "leaves"),
        ("x\0.png", "NUL"),
        ("./", "empty"),
        (LONGEST_AND_DEEPEST + "x", "4097 characters"),
        ("x/" * 128 + "x", r"too deep \(128 folders\)"),
    ],
)
def test_unsafe_names_are_rejected(raw: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        safe_name(raw)


def tar_with_name(path: Path, name: str) -> Path:
    return hostile_archives.write_zeros_tar(path, hostile_archives.tar_member(name))


def seven_zip_with_name(path: Path, name: str) -> Path:
    with py7zr.SevenZipFile(path, "w") as archive:
        archive.writestr(b"content", "x")
        archive.header.files_info.files[0]["filename"] = name  # py7zr refuses to write some of these names
    return path


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *product(
            [hostile_archives.zip_with_name, tar_with_name, seven_zip_with_name],
            ["/x", "C:\\x", "\\\\server\\x", "a/../../x", "..\\x"],
        ),
        (hostile_archives.zip_with_name, "a\0b"),  # in tar and 7z, a NUL ends the name
    ],
)
def test_archive_with_an_unsafe_name_is_rejected_when_opened(
    make: Callable[[Path, str], Path], name: str, user_dir: Path
) -> None:
    with pytest.raises(ArchiveError, match=r"a\.bin: member .* rejected"):
        open_archive(make(user_dir / "a.bin", name))


@pytest.mark.parametrize("name", ["a:b", "aux", "img/con.png", "dot.", "img /x", "what?", "a\x1fb", "\udcff"])
def test_names_not_allowed_on_windows_have_a_problem(name: str) -> None:
    assert find_name_problem(name)


def test_names_of_the_same_file_collide() -> None:
    collisions = find_name_collisions(["a/x.png", "A/x.png", "b", "b", "é", "e\u0301", "alone"])
    assert collisions.keys() == {"a/x.png", "A/x.png", "b", "é", "e\u0301"}
    assert "A/x.png" in collisions["a/x.png"]
    assert "twice" in collisions["b"]


@pytest.mark.parametrize("names", [["a", "A", "a"], ["a", "a", "A"], ["aB", "ab", "AB", "Ab", "ab"]])
def test_name_does_not_collide_with_itself(names: list[str]) -> None:
    collisions = find_name_collisions(names)
    assert collisions.keys() == set(names)
    for name, reason in collisions.items():
        this, other = re.findall(r"'(\w+)'", reason)
        assert this == name and other in names and other != name


def test_collisions_that_look_equal_are_shown_with_escapes() -> None:
    reason = r"on Windows and macOS, 'e\u0301' is the same name as '\xe9'"
    assert find_name_collisions(["\u00e9", "e\u0301"])["e\u0301"] == reason


def test_name_that_is_also_a_folder_collides() -> None:
    collisions = find_name_collisions(["a/b/c.png", "A/b", "a/bc", "x", "x/y/z", "alone"])
    assert collisions.keys() == {"A/b", "x"}
    assert "folder" in collisions["x"]
