"""What a file's start says about one that is not what it should be."""

import pytest

from mmf_win.sniffing import recognize_substitute

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"", "an empty file"),
        (POINTER, "a git-lfs pointer"),
        (b"\xef\xbb\xbf\r\n<!DOCTYPE html><html>", "a web page"),
        (b"<HTML><body>Sign in", "a web page"),
        (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code>", "a server's answer"),
        (b'{"error": "expired"}', "a server's answer"),
        (b"Rar!\x1a\x07\x01\0", "a RAR archive"),
    ],
)
def test_what_is_no_data_is_recognized(head: bytes, kind: str) -> None:
    substitute = recognize_substitute(head)
    assert substitute is not None and substitute.kind == kind and substitute.hint


@pytest.mark.parametrize(
    "head", [b"PK\x03\x04", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"a text", b"\0" * 512]
)
def test_other_files_are_not(head: bytes) -> None:
    assert recognize_substitute(head) is None
