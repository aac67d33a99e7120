"""7z: extraction, rejected archives, and distribution over threads."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import py7zr
import pytest

from mmf_win.archives import open_archive, sevenzip
from mmf_win.archives.base import MemberWriter
from mmf_win.errors import ArchiveError, PasswordError
from tests.worlds import hostile_archives
from tests.worlds.archive_writers import (
    COPY_FILTERS,
    DATASET_FILES,
    choose_all,
    choose_members,
    unpack_all,
    write_7z,
    write_tar,
)
from tests.worlds.memes import Files, read_tree, write_tree
from tests.worlds.tools import requires_tool, run_program


@pytest.mark.parametrize("password", [None, "пароль 密码"])
@pytest.mark.parametrize("hide_names", [False, True])
def test_7z_is_extracted(password: str | None, hide_names: bool, user_dir: Path) -> None:
    path = write_7z(user_dir / "a.7z", DATASET_FILES, password, hide_names=hide_names and password is not None)
    assert unpack_all(path, user_dir / "out", password) == DATASET_FILES


@requires_tool("7z")
@pytest.mark.parametrize(
    "options", [["-ms=off"], ["-psecret"], ["-psecret", "-mhe=on"], ["-m0=bzip2"], ["-pпароль"]], ids=" ".join
)
def test_7z_of_the_7_zip_program_is_extracted(options: list[str], user_dir: Path) -> None:
    write_tree(DATASET_FILES, user_dir)
    run_program("7z", "a", *options, "a.7z", "hateful_memes", cwd=user_dir)
    password = "пароль" if "-pпароль" in options else "secret"
    assert unpack_all(user_dir / "a.7z", user_dir / "out", password) == DATASET_FILES


@pytest.mark.parametrize("hide_names", [False, True])
@pytest.mark.parametrize(("given", "reason"), [("wrong", "wrong password"), (None, "no password was")])
def test_wrong_or_missing_password_of_7z_raises(
    given: str | None, reason: str, hide_names: bool, user_dir: Path
) -> None:
    path = write_7z(user_dir / "a.7z", DATASET_FILES, "right", hide_names=hide_names)
    with pytest.raises(PasswordError, match=reason):
        open_archive(path, given and (lambda: given)).check_password()


def test_7z_writes_and_counts_only_chosen_members(user_dir: Path) -> None:
    path = write_7z(user_dir / "a.7z", DATASET_FILES)
    seen: list[int] = []
    archive = open_archive(path)
    (extracted,) = archive.extract(
        choose_members({"hateful_memes/dev_seen.jsonl": user_dir / "out" / "x.jsonl"}), seen.append
    )
    assert read_tree(user_dir / "out") == {"x.jsonl": DATASET_FILES["hateful_memes/dev_seen.jsonl"]}
    assert sum(seen) == extracted.size


@pytest.fixture
def two_streams(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a 7z with two streams, which are extracted by several threads despite their small size."""
    monkeypatch.setattr(sevenzip, "MIN_SHARE_BYTES", 1)
    monkeypatch.setattr(sevenzip, "default_thread_count", lambda: 3)
    path = write_7z(user_dir / "a.7z", {"x": TWO_STREAMS["x"]}, "secret")
    with py7zr.SevenZipFile(path, "a", password="secret") as archive:
        for name in ("y", "z"):
            archive.writestr(TWO_STREAMS[name], name)
    return path


TWO_STREAMS: Files = {"x": DATASET_FILES["hateful_memes/img/00001.png"], "y": b"y" * 5000, "z": b"z" * 5000}


def test_streams_of_7z_are_extracted_separately(
    two_streams: Path, user_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[list[str]] = []
    extract_share = sevenzip.SevenZipArchive._extract_share

    def record_share(self: sevenzip.SevenZipArchive, share: list[sevenzip.SevenZipMember], *rest: Any) -> None:
        passes.append([member.name for member in share])
        extract_share(self, share, *rest)

    monkeypatch.setattr(sevenzip.SevenZipArchive, "_extract_share", record_share)
    assert unpack_all(two_streams, user_dir / "out", "secret") == TWO_STREAMS
    assert sorted(passes) == [["x"], ["y", "z"]]


def test_small_streams_are_read_by_one_decoder(
    two_streams: Path, user_dir: Path, decoders: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sevenzip, "MIN_SHARE_BYTES", 1 + sum(map(len, TWO_STREAMS.values())))
    assert unpack_all(two_streams, user_dir / "out", "secret") == TWO_STREAMS
    assert len(set(decoders)) == 1


def test_decoder_is_reused_and_derives_the_key_once(user_dir: Path, decoders: list[subprocess.Popen[bytes]]) -> None:
    from mmf_win.archives import sevenzip_decoder

    path = write_7z(user_dir / "a.7z", DATASET_FILES, "secret", hide_names=True)
    for _ in range(2):
        assert unpack_all(path, user_dir / "out", "secret") == DATASET_FILES
    assert len(set(decoders)) == 1
    request = {"path": os.fsencode(path).hex(), "password": "secret"}
    for numbers in (None, [0], [1]):
        assert list(sevenzip_decoder.answer_request(**request, numbers=numbers))
    assert py7zr.compressor.calculate_key.cache_info().misses == 1


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Return a list that records the decoder of each request."""
    used: list[subprocess.Popen[bytes]] = []
    decoder = sevenzip._get_decoder
    monkeypatch.setattr(sevenzip, "_get_decoder", lambda: used.append(decoder()) or used[-1])
    return used


def test_decoder_memory_does_not_grow_with_the_archive(user_dir: Path) -> None:
    from mmf_win.archives import sevenzip_decoder

    files = {"x": Random(1).randbytes(8 << 20).hex().encode()}
    path = write_7z(user_dir / "a.7z", files, filters=[{"id": py7zr.FILTER_LZMA2, "preset": 0}])
    tracemalloc.start()
    blocks = sevenzip_decoder.answer_request(os.fsencode(path).hex(), None, [0])
    next(blocks)
    tracemalloc.reset_peak()  # the list of members was decoded with a larger dictionary
    assert sum(map(len, blocks)) > 14 << 20
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


LARGE: Files = {"x": bytes(50 << 20)}
"""Content that a decoder cannot write completely before it is read."""


@pytest.fixture
def after_first_block(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return a list of functions, called once by the thread that wrote the first block of a member."""
    calls: list[Callable[[], object]] = []
    write = MemberWriter.write

    def write_and_call(output: MemberWriter, block: bytes | memoryview) -> None:
        write(output, block)
        while calls:
            calls.pop()()

    monkeypatch.setattr(MemberWriter, "write", write_and_call)
    return calls


def test_interrupted_7z_extraction_stops_the_decoder(
    user_dir: Path, decoders: list[subprocess.Popen[bytes]], after_first_block: list[Callable[[], object]]
) -> None:
    interrupted = threading.Event()
    after_first_block.append(interrupted.wait)

    def interrupt(amount: int) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    archive = open_archive(write_7z(user_dir / "a.7z", LARGE, filters=COPY_FILTERS))
    with pytest.raises(KeyboardInterrupt):
        list(archive.extract(choose_all(user_dir / "out"), interrupt))
    assert decoders[-1].returncode is not None, "the decoder must be stopped"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mmfw")]
    assert read_tree(user_dir / "out") == {}


def test_killed_decoder_raises_and_leaves_no_file(
    user_dir: Path, decoders: list[subprocess.Popen[bytes]], after_first_block: list[Callable[[], object]]
) -> None:
    path = write_7z(user_dir / "a.7z", LARGE, filters=COPY_FILTERS)
    archive = open_archive(path)
    decoders[-1].kill()
    decoders[-1].wait()  # the end of an idle decoder is not reported
    after_first_block.append(lambda: decoders[-1].kill())
    with pytest.raises(ArchiveError, match=r"a\.7z: decoder failed"):
        list(archive.extract(choose_all(user_dir / "out")))
    assert read_tree(user_dir / "out") == {}
    assert unpack_all(path, user_dir / "out") == LARGE


_INTERRUPTED = """
import os, signal, sys
if sys.platform == "win32":
    import ctypes
    ctypes.windll.kernel32.ExitProcess(ctypes.c_uint(0xC000013A))
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGINT)
"""


def test_decoder_ended_by_ctrl_c_raises_keyboard_interrupt(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, "-c", _INTERRUPTED], stdin=pipe, stdout=pipe)

    path = write_7z(user_dir / "a.7z", WORDS)
    monkeypatch.setattr(sevenzip, "_get_decoder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_archive(path)


def test_member_list_with_an_unsafe_method_is_not_decoded(user_dir: Path) -> None:
    ppmd = {"id": py7zr.FILTER_PPMD, "order": 6, "mem": 16}
    with pytest.raises(ArchiveError, match=r"a\.7z: .*PPMd"):
        open_archive(hostile_archives.seven_zip_with_packed_list(user_dir / "a.7z", WORDS, ppmd))
    with pytest.raises(ArchiveError, match=r"a\.7z: .*memory"):
        open_archive(hostile_archives.seven_zip_with_dictionary(user_dir / "a.7z", WORDS, 40, in_header=True))  # 4 GiB


@pytest.mark.parametrize("offset", [1 << 20, 1 << 62, (1 << 63) - 32, 1 << 63])
def test_7z_with_an_impossible_header_offset_is_rejected(offset: int, user_dir: Path) -> None:
    with pytest.raises(ArchiveError, match=r"a\.7z: not a valid 7z"):
        open_archive(hostile_archives.seven_zip_with_header_at(user_dir / "a.7z", offset))


def test_damaged_member_of_7z_leaves_no_file(user_dir: Path) -> None:
    files = {"good": b"fine " * 100, "bad": b"fine " * 99 + b"LAST!"}
    path = write_7z(user_dir / "a.7z", files, filters=COPY_FILTERS)
    hostile_archives.flip_byte(path, path.read_bytes().index(b"LAST"))
    opened = open_archive(path)
    with pytest.raises(ArchiveError, match=r"member bad: .*checksum"):
        list(opened.extract(choose_all(user_dir / "out")))
    assert read_tree(user_dir / "out").keys() == {"good"}


WORDS: Files = {"x": b"words " * 1000}
CODECS = {
    "LZMA2": {"id": py7zr.FILTER_LZMA2, "preset": 1},
    "BZip2": {"id": py7zr.FILTER_BZIP2},
    "Deflate": {"id": py7zr.FILTER_DEFLATE},
    "Zstandard": {"id": py7zr.FILTER_ZSTD, "level": 3},
    "Brotli": {"id": py7zr.FILTER_BROTLI, "level": 3},
}


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_damage_of_any_7z_codec_raises_archive_error(codec: dict[str, int], user_dir: Path) -> None:
    path = write_7z(user_dir / "a.7z", WORDS, filters=[codec])
    data = path.read_bytes()
    header = 32 + int.from_bytes(data[12:20], "little")
    for at in range(32, header):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        with contextlib.suppress(ArchiveError):
            opened = open_archive(path)
            list(opened.extract(choose_all(user_dir / "out")))
            # Some codecs ignore some bits, and some bits are part of the name.
            assert set(read_tree(user_dir / "out").values()) == {WORDS["x"]}


# py7zr 1.1 cannot read encrypted Brotli archives that it has written.
@pytest.mark.parametrize("codec", sorted(CODECS.keys() - {"Brotli"}))
def test_wrong_password_is_detected_for_any_7z_codec(codec: str, user_dir: Path) -> None:
    filters = [CODECS[codec], {"id": py7zr.FILTER_CRYPTO_AES256_SHA256}]
    path = write_7z(user_dir / "a.7z", WORDS, "secret", filters=filters)
    open_archive(path, lambda: "secret").check_password()
    with pytest.raises(PasswordError, match="wrong password"):
        open_archive(path, lambda: "wrong").check_password()


@pytest.mark.parametrize("hide_names", [False, True])
def test_7z_asks_for_its_password_once_and_only_if_needed(hide_names: bool, user_dir: Path) -> None:
    prompts: list[str] = []

    def ask() -> str:
        prompts.append("")
        return "right"

    opened = open_archive(write_7z(user_dir / "open.7z", DATASET_FILES), ask)
    opened.check_password()
    assert prompts == []
    opened = open_archive(write_7z(user_dir / "a.7z", DATASET_FILES, "right", hide_names=hide_names), ask)
    opened.check_password()
    list(opened.extract(choose_all(user_dir / "out")))
    assert len(prompts) == 1


@pytest.mark.parametrize("password", [None, "wrong"])
def test_ppmd_in_7z_is_rejected_before_decoding(password: str | None, user_dir: Path) -> None:
    filters = [{"id": py7zr.FILTER_PPMD, "order": 6, "mem": 16}]
    if password:
        filters.append({"id": py7zr.FILTER_CRYPTO_AES256_SHA256})
    path = write_7z(user_dir / "a.7z", WORDS, password and "right", filters=filters)
    opened = open_archive(path, None if password is None else lambda: password)
    opened.check_password()
    with pytest.raises(ArchiveError, match=r"a\.7z: member x: .*PPMd"):
        list(opened.extract(choose_members({"x": user_dir / "x"})))


def test_full_disk_raises_os_error_with_fake_disk(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(output: MemberWriter, block: bytes) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    paths = [write_7z(user_dir / "a.7z", DATASET_FILES), write_tar(user_dir / "a.tar.gz", DATASET_FILES, "gz")]
    monkeypatch.setattr(MemberWriter, "write", full)
    for path in paths:
        opened = open_archive(path)
        with pytest.raises(OSError, match="No space left"):
            list(opened.extract(choose_members({"hateful_memes/dev_seen.jsonl": user_dir / "out"})))


@requires_tool("7z")
@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_chosen_link_in_7z_is_rejected(user_dir: Path) -> None:
    write_tree({"data/x": b"x"}, user_dir)
    (user_dir / "data" / "link").symlink_to("/etc/passwd")
    run_program("7z", "a", "-snl", "a.7z", "data", cwd=user_dir)
    archive = open_archive(user_dir / "a.7z")
    with pytest.raises(ArchiveError, match="links are not supported"):
        list(archive.extract(choose_members({"data/link": user_dir / "out"})))
    assert not (user_dir / "out").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights on Windows")
def test_7z_ignores_links_in_the_current_folder(user_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_7z(user_dir / "a.7z", DATASET_FILES)
    (user_dir / "here").mkdir()
    (user_dir / "here" / "data").symlink_to(user_dir.parent, target_is_directory=True)
    monkeypatch.chdir(user_dir / "here")
    assert unpack_all(path, user_dir / "out") == DATASET_FILES
