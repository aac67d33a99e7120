"""Recognition of wrong file types by their first bytes."""

import copy
import pickle
from pathlib import Path

import pytest

from mmf_win.protocol import AttemptOutcome
from mmf_win.sniffing import UNPACK_HINT, UNPACK_TWICE_HINT, CommandHint, recognize_substitute

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", "an empty file"),
        (POINTER, "a git-lfs pointer"),
        (b"\xef\xbb\xbf\r\n<!DOCTYPE html><html>", "a web page or an error message of a server"),
        (b"<HTML><body>Sign in", "a web page or an error message of a server"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "a web page or an error message of a server"),
        (b'{"error": "expired"}', "a web page or an error message of a server"),
        (b'{\n  "message": "Not Found",\n', "a web page or an error message of a server"),
        (b"404: Not Found", "a web page or an error message of a server"),
        (b"Entry not found", "a web page or an error message of a server"),
        (b"<!-- saved from url=(0023)https://example.com/ -->", "a web page or an error message of a server"),
        (b"HTTP/1.1 403 Forbidden\r\n", "a web page or an error message of a server"),
        (b"BZh91AY&SY", "a bzip2 file"),
        (b"\xfd7zXZ\0\0\x04", "an xz file"),
        (b"\x28\xb5\x2f\xfd\x04", "a Zstandard file"),
        (b"\x5d\0\0\x80\0", "an LZMA file"),
        (b"Rar!\x1a\x07\x01\0", "a RAR archive"),
    ],
)
def test_wrong_type_of_file_is_recognized(head: bytes, kind: str) -> None:
    substitute = recognize_substitute(head)
    assert substitute is not None and substitute[0] == kind and substitute[1]


@pytest.mark.parametrize(
    "head",
    [
        b"PK\x03\x04",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff\xe0",
        b"a text",
        b"4040",
        b'{"id": 1, "code": 2}',
        b"\0" * 512,
    ],
)
def test_other_files_are_not_reported(head: bytes) -> None:
    assert recognize_substitute(head) is None


@pytest.mark.parametrize("hint", [UNPACK_HINT, UNPACK_TWICE_HINT, UNPACK_HINT.with_command("mmfw features extract")])
def test_copy_of_hint_equals_the_hint(hint: CommandHint) -> None:
    copies = [copy.copy(hint), copy.deepcopy(hint), *(pickle.loads(pickle.dumps(hint, n)) for n in range(6))]
    assert {*copies} == {hint}
    assert {copied.with_command("mmfw convert") for copied in copies} == {hint.with_command("mmfw convert")}


def test_outcome_is_saved_with_the_hint_of_its_error(tmp_path: Path) -> None:
    AttemptOutcome("data", "x.rar: a RAR archive", UNPACK_HINT).save(tmp_path / "exit.json")
    assert AttemptOutcome.load(tmp_path / "exit.json") == AttemptOutcome("data", "x.rar: a RAR archive", UNPACK_HINT)
