"""zip of all kinds: extraction, rejected archives, and no unverified files on disk."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from mmf_win.archives import open_archive
from mmf_win.archives.zipcrypto import write_encrypted_zip
from mmf_win.errors import ArchiveError, PasswordError
from tests.worlds import hostile_archives
from tests.worlds.archive_writers import choose_members, unpack_all
from tests.worlds.memes import Files, dataset_files, read_tree, write_tree
from tests.worlds.tools import requires_tool, run_program

FILES: Files = {"data/a b.txt": b"words " * 500, "data/图/мем.png": bytes(range(256)) * 9, "data/empty": b""}

FOX = b"The quick brown fox jumps over the lazy dog. The quick brown fox jumps over the lazy dog."


@pytest.fixture
def encrypted(user_dir: Path) -> Path:
    path = user_dir / "архив 档案.zip"
    write_encrypted_zip(path, FILES.items(), "пароль 密码")
    return path


def test_members_have_sizes_and_checksums(user_dir: Path) -> None:
    path = user_dir / "a.zip"
    with zipfile.ZipFile(path, "w") as zip_file:
        zip_file.writestr("folder/", b"")
        zip_file.writestr("folder/x", b"abc")
    archive = open_archive(path)
    (member,) = archive.members
    assert (member.name, member.size, member.crc32, member.problem) == ("folder/x", 3, 0x352441C2, None)


@requires_tool("unzip", "7z")
@pytest.mark.parametrize("command", ["unzip -P secret a.zip -d out", "7z x -psecret -oout a.zip"])
def test_encrypted_zip_is_read_by_other_programs(command: str, user_dir: Path) -> None:
    write_encrypted_zip(user_dir / "a.zip", [("x/文.txt", FOX), ("empty", b"")], "secret")
    run_program(*command.split(), cwd=user_dir)
    assert read_tree(user_dir / "out") == {"x/文.txt": FOX, "empty": b""}


@requires_tool("zip", "7z")
@pytest.mark.parametrize(
    "command",
    [
        ["zip", "-rq", "a.zip", "data"],
        ["zip", "-rq", "-0", "a.zip", "data"],
        ["zip", "-rq", "-fz", "a.zip", "data"],  # Zip64
        ["zip", "-rq", "-P", "secret", "a.zip", "data"],
        ["zip", "-rq", "-P", "пароль", "a.zip", "data"],
        ["7z", "a", "-tzip", "a.zip", "data"],
        ["7z", "a", "-tzip", "-psecret", "a.zip", "data"],
        ["7z", "a", "-tzip", "-psecret", "-mem=AES128", "a.zip", "data"],
        ["7z", "a", "-tzip", "-psecret", "-mem=AES192", "-mx=0", "a.zip", "data"],
        ["7z", "a", "-tzip", "-psecret", "-mem=AES256", "a.zip", "data"],
    ],
    ids=" ".join,
)
def test_zips_of_other_programs_are_extracted(command: list[str], user_dir: Path) -> None:
    write_tree(FILES, user_dir)
    run_program(*command, cwd=user_dir)
    password = next((p for p in ("secret", "пароль") if p in " ".join(command)), None)
    assert unpack_all(user_dir / "a.zip", user_dir / "out", password) == FILES
    if password is not None:
        archive = open_archive(user_dir / "a.zip", lambda: "wrong")
        with pytest.raises(PasswordError):
            archive.check_password()


@requires_tool("7z")
@pytest.mark.parametrize("password", ["short", "p" * 65], ids=["short", "longer than a block of SHA-1"])
def test_aes_zip_with_all_key_sizes_is_extracted(password: str, user_dir: Path) -> None:
    files: Files = {}
    for strength in ("AES128", "AES192", "AES256"):
        part = {f"{strength}/{number:02}": bytes([number]) * number * 100 for number in range(11)}
        write_tree(part, user_dir)
        run_program("7z", "a", "-tzip", f"-p{password}", f"-mem={strength}", "a.zip", strength, cwd=user_dir)
        files |= part
    assert unpack_all(user_dir / "a.zip", user_dir / "out", password) == files


@pytest.mark.parametrize("codec", ["utf-8", "cp437", "latin-1"])
def test_password_in_a_code_page_is_accepted(codec: str, user_dir: Path) -> None:
    class Encoded(str):  # the writer would encode the password as UTF-8
        def encode(self, *_: object) -> bytes:  # type: ignore[override]
            return "Grüße".encode(codec)

    write_encrypted_zip(user_dir / "a.zip", [("x", FOX)], Encoded())
    assert unpack_all(user_dir / "a.zip", user_dir / "out", "Grüße") == {"x": FOX}


@pytest.mark.parametrize("files", [{"x": FOX}, dataset_files()], ids=["one member", "many members"])
def test_wrong_password_is_detected_before_writing(files: Files, user_dir: Path) -> None:
    path = user_dir / "a.zip"
    write_encrypted_zip(path, files.items(), "right")
    for number in range(300):  # the check byte of one header accepts 1 in 256
        ask = partial("wrong {}".format, number)
        archive = open_archive(path, ask)
        with pytest.raises(PasswordError, match="wrong"):
            archive.check_password()


@pytest.mark.parametrize("count", [4, 20])
def test_damaged_header_is_not_reported_as_a_wrong_password(count: int, user_dir: Path) -> None:
    path = user_dir / "a.zip"
    write_encrypted_zip(path, [(f"{number}", FOX) for number in range(count)], "right")
    hostile_archives.flip_byte(path, path.read_bytes().index(b"0") + 12)  # the check byte
    archive = open_archive(path, lambda: "right")
    (extracted,) = archive.extract(choose_members({"1": user_dir / "1"}))
    with pytest.raises(PasswordError, match="wrong password for member 0") as caught:
        list(archive.extract(choose_members({"0": user_dir / "0"})))
    assert extracted.target.read_bytes() == FOX
    assert "damaged" in str(caught.value.hint) and not (user_dir / "0").exists()


def test_missing_password_raises_its_own_error(encrypted: Path) -> None:
    archive = open_archive(encrypted)
    with pytest.raises(PasswordError, match="no password was given"):
        archive.check_password()


def test_extract_checks_the_password(encrypted: Path, user_dir: Path) -> None:
    archive = open_archive(encrypted, lambda: "wrong")
    with pytest.raises(PasswordError):
        list(archive.extract(choose_members({"data/a b.txt": user_dir / "x"})))
    assert not (user_dir / "x").exists()


def test_unneeded_password_is_ignored(user_dir: Path) -> None:
    assert unpack_all(hostile_archives.write_zip(user_dir / "a.zip", FILES), user_dir / "out", "unneeded") == FILES


def test_utf8_names_without_the_utf8_flag_are_decoded(encrypted: Path, user_dir: Path) -> None:
    data = encrypted.read_bytes().replace(b"\x14\x00\x01\x08", b"\x14\x00\x01\x00")
    encrypted.write_bytes(data)
    assert unpack_all(encrypted, user_dir / "out", "пароль 密码") == FILES


def make_zip_writer(size: int) -> Callable[[Path], Path]:
    """Return a function that writes a zip that declares ``size`` for its only member of 3000 bytes."""
    return lambda path: hostile_archives.declare_size(hostile_archives.write_zip(path, {"x": b"abc" * 1000}), size)


def write_damaged_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:  # stored, so that only the checksum detects the damage
        archive.writestr("good", FOX)
        archive.writestr("bad", FOX)
    return hostile_archives.flip_byte(path, path.read_bytes().rindex(b"lazy"))


@pytest.mark.parametrize(
    ("make", "name", "reason"),
    [
        (hostile_archives.zip_with_link, "link", "symbolic links are not supported"),
        (lambda path: hostile_archives.zip_with_name(path, "aux.png"), "aux.png", "Windows"),
        (lambda path: hostile_archives.zip_with_duplicates(path, "x", "x"), "x", "twice"),
        (lambda path: hostile_archives.zip_with_duplicates(path, "x", "X"), "x", "the same name as"),
        (lambda path: hostile_archives.zip_with_duplicates(path, "x/y", "x"), "x", "folder"),
        (make_zip_writer(2999), "x", "larger than its declared size"),
        (make_zip_writer(10), "x", "larger than its declared size"),
        (make_zip_writer(4000), "x", "truncated (3000 of 4000 bytes)"),
        (make_zip_writer(4_000_000_000), "x", "is impossible for its compressed data"),
        (
            lambda path: hostile_archives.declare_encrypted(hostile_archives.write_zip(path, {"x": b"short"})),
            "x",
            "too short for an encrypted member",
        ),
        (write_damaged_zip, "bad", "checksum"),
    ],
)
def test_rejected_member_is_named_and_leaves_no_file(
    make: Callable[[Path], Path], name: str, reason: str, user_dir: Path
) -> None:
    path, out = make(user_dir / "a.zip"), user_dir / "out"
    archive = open_archive(path)
    with pytest.raises(ArchiveError) as caught:
        list(archive.extract(choose_members({name: out})))
    assert not out.exists()
    assert all(part in str(caught.value) for part in (str(path), name, reason))


def test_rejected_members_do_not_prevent_extracting_others(user_dir: Path) -> None:
    path = hostile_archives.zip_with_duplicates(user_dir / "a.zip", "x", "X", "folder", "folder/good")
    archive = open_archive(path)
    (extracted,) = archive.extract(choose_members({"folder/good": user_dir / "good"}))
    assert extracted.target.read_bytes() == b"folder/good"


def test_overlapping_members_are_rejected(user_dir: Path) -> None:
    path = hostile_archives.declare_offset(hostile_archives.zip_with_duplicates(user_dir / "a.zip", "x", "x"), 0)
    archive = open_archive(path)
    assert "overlaps" in str([m.problem for m in archive.members])


def test_members_overlapping_by_less_than_a_header_are_rejected(user_dir: Path) -> None:
    path = hostile_archives.declare_packed_size(hostile_archives.zip_with_duplicates(user_dir / "a.zip", "x", "y"), 3)
    assert ["overlaps" in str(member.problem) for member in open_archive(path).members] == [True, False]


def test_zip_bomb_with_shared_data_is_rejected(user_dir: Path) -> None:
    path = hostile_archives.zip_with_shared_data(user_dir / "a.zip", bytes(1 << 20), 100)
    with pytest.raises(ArchiveError, match="local header has another name"):
        open_archive(path)


def test_last_bytes_in_the_inflater_are_written(user_dir: Path) -> None:
    files: Files = {f"{size}": bytes((1 << 20) + size) for size in range(1, 300, 30)}
    write_encrypted_zip(user_dir / "a.zip", files.items(), "secret")
    assert unpack_all(user_dir / "a.zip", user_dir / "out", "secret") == files


def test_existing_target_is_replaced(user_dir: Path) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", {"x": FOX})
    (user_dir / "out").mkdir()
    (user_dir / "out" / "x").write_bytes(b"older and much longer" * 100)
    assert unpack_all(path, user_dir / "out") == {"x": FOX}


def test_target_below_a_file_raises_os_error(user_dir: Path) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", {"x": FOX})
    (user_dir / "out").write_bytes(b"a file")
    archive = open_archive(path)
    with pytest.raises(OSError):
        list(archive.extract(choose_members({"x": user_dir / "out" / "x"})))
    assert (user_dir / "out").read_bytes() == b"a file"


def test_zip_after_a_program_is_extracted(user_dir: Path) -> None:
    path = hostile_archives.write_zip(user_dir / "a.zip", FILES)
    path.write_bytes(b"MZ this is a program\n" * 50 + path.read_bytes())
    assert unpack_all(path, user_dir / "out") == FILES


def test_failed_writer_keeps_the_old_file(user_dir: Path) -> None:
    path = user_dir / "a.zip"
    path.write_bytes(b"old")

    def files() -> Iterator[tuple[str, bytes]]:
        yield "x", FOX
        raise RuntimeError("the source failed")

    with pytest.raises(RuntimeError):
        write_encrypted_zip(path, files(), "secret")
    assert [file.name for file in user_dir.iterdir()] == ["a.zip"] and path.read_bytes() == b"old"
