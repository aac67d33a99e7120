"""Names of members: what is made safe, what is refused, and what Windows would confuse."""

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
"""A name of 4096 characters in 127 folders."""


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
def test_harmless_names_become_posix_paths_that_windows_takes(raw: str, safe: str) -> None:
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
        ("../x", "climbs"),
        ("data/../../x", "climbs"),
        ("data\\..\\x", "climbs"),
        ("x\0.png", "NUL"),
        ("./", "empty"),
        (LONGEST_AND_DEEPEST + "x", "4097 characters"),
        ("x/" * 128 + "x", "in 128 folders"),
    ],
)
def test_names_that_lead_out_of_the_folder_are_refused(raw: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        safe_name(raw)


def tar_with_name(path: Path, name: str) -> Path:
    return hostile_archives.write_zeros_tar(path, hostile_archives.tar_member(name))


def seven_zip_with_name(path: Path, name: str) -> Path:
    with py7zr.SevenZipFile(path, "w") as archive:
        archive.writestr(b"content", "x")
        archive.header.files_info.files[0]["filename"] = name  # py7zr would not write some
    return path


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *product(
            [hostile_archives.zip_with_name, tar_with_name, seven_zip_with_name],
            ["/x", "C:\\x", "\\\\server\\x", "a/../../x", "..\\x"],
        ),
        (hostile_archives.zip_with_name, "a\0b"),  # a NUL ends the names of the others
    ],
)
def test_an_attack_by_names_is_refused_at_once(
    make: Callable[[Path, str], Path], name: str, user_dir: Path
) -> None:
    with pytest.raises(ArchiveError, match=r"a\.bin: member .* is refused"):
        open_archive(make(user_dir / "a.bin", name))


@pytest.mark.parametrize("name", ["a:b", "aux", "img/con.png", "dot.", "img /x", "what?", "a\x1fb", "\udcff"])
def test_names_that_windows_refuses_have_a_problem(name: str) -> None:
    assert find_name_problem(name)


def test_twins_are_names_for_one_file() -> None:
    twins = find_name_collisions(["a/x.png", "A/x.png", "b", "b", "é", "e\u0301", "alone"])
    assert twins.keys() == {"a/x.png", "A/x.png", "b", "é", "e\u0301"}
    assert "A/x.png" in twins["a/x.png"]
    assert "twice" in twins["b"]


@pytest.mark.parametrize("names", [["a", "A", "a"], ["a", "a", "A"], ["aB", "ab", "AB", "Ab", "ab"]])
def test_no_name_is_called_a_twin_of_itself(names: list[str]) -> None:
    twins = find_name_collisions(names)
    assert twins.keys() == set(names)
    for name, told in twins.items():
        this, other = re.findall(r"'(\w+)'", told)
        assert this == name and other in names and other != name


def test_twins_that_look_the_same_are_shown_with_escapes() -> None:
    told = r"to Windows and macOS, 'e\u0301' is the same name as '\xe9'"
    assert find_name_collisions(["\u00e9", "e\u0301"])["e\u0301"] == told


def test_a_name_that_is_a_folder_of_others_too_is_told() -> None:
    clashes = find_name_collisions(["a/b/c.png", "A/b", "a/bc", "x", "x/y/z", "alone"])
    assert clashes.keys() == {"A/b", "x"}
    assert "folder" in clashes["x"]
