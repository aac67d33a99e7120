"""Tiny MMF as GitHub and PyPI send it."""

from __future__ import annotations

import base64
import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from mmf_win.upstream.sources import GithubArchive, PypiWheel
from tests.worlds.memes import write_tree

VERSION = "9.9.0"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Calculated by git for TREE; tests/integrity/test_manifest.py compares it with the installed git.
TREE_ID = "4a3b612f8b3fd9f21db2f9607d1dc3690bd4f2df"


class File(NamedTuple):
    """File of the tree; the content of a link is its target."""

    content: bytes
    kind: Literal["file", "program", "link"] = "file"


TREE: Mapping[str, File] = {
    "mmf/__init__.py": File(b""),
    "mmf/version.py": File(f'__version__ = "{VERSION}"\n'.encode()),
    "mmf/configs/real.yaml": File(b"a: 1\n"),
    "mmf_cli/__init__.py": File(b""),
    "mmf_cli/run.py": File(b"def run(): ...\n"),
    "projects/pythia/link.yaml": File(b"../../mmf/configs/real.yaml", "link"),
    "tools/run me.sh": File(b"#!/bin/sh\n", "program"),
    # git sorts a folder as if its name ended in a slash, so these files come before the folder mmf.
    "mmf-notes.txt": File(b"\r\n"),
    "mmf.txt": File(b"\0" * 70_000),
    "docs/Привет 你好.md": File("Привет\n".encode()),
}


def git_archive(files: Mapping[str, File], top: str = f"mmf-{COMMIT}") -> bytes:
    """Return an archive like those of ``git archive``."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        folder = tarfile.TarInfo(f"{top}/")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for path, file in files.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.mode = 0o775 if file.kind == "program" else 0o664
            if file.kind == "link":
                member.type, member.linkname = tarfile.SYMTYPE, file.content.decode()
                archive.addfile(member)
            else:
                member.size = len(file.content)
                archive.addfile(member, io.BytesIO(file.content))
    return buffer.getvalue()


def write_checkout(root: Path) -> Path:
    """Write the tiny MMF to a folder, as in a user's checkout, and return the folder."""
    return write_tree({path: file.content for path, file in TREE.items()}, root)


def github_archive(url: str, tree_id: str = TREE_ID) -> GithubArchive:
    """Return the source of the tiny MMF on a server."""
    return GithubArchive(version=VERSION, commit=COMMIT, tree_id=tree_id, url=f"{url}/mmf.tar.gz")


def write_pypi_wheel(folder: Path) -> PypiWheel:
    """Write the tiny MMF as a wheel for Linux and Python 3.8, like the real one, and return its source."""
    info = f"mmf-{VERSION}.dist-info"
    files = {path: file.content for path, file in TREE.items() if path.startswith("mmf")}
    files[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: mmf\nVersion: {VERSION}\n".encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: cp38-cp38-manylinux1_x86_64\n"
    lines = [f"{path},sha256={_record_hash(content)},{len(content)}" for path, content in files.items()]
    record = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    wheel = folder / f"mmf-{VERSION}-cp38-cp38-manylinux1_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(path, content)
    return PypiWheel(version=VERSION, wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())


def _record_hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def write_minimal_mmf(root: Path, version: str = "1.0.0rc10", extra_defaults: str = "") -> Path:
    """Write an MMF that has only a version and defaults (``extra_defaults`` is YAML), and return its folder."""
    folder_settings = "  cache_dir: c\n  data_dir: d\n  save_dir: s\n  report_dir: r\n"
    texts = {
        "configs/defaults.yaml": "env:\n  user_dir: ${env:MMF_USER_DIR,}\n" + folder_settings + extra_defaults,
        "configs/datasets/hateful_memes/defaults.yaml": "{dataset_config: {hateful_memes: {}}}",
        "version.py": f'__version__ = "{version}"\n',
    }
    write_tree({f"mmf/{path}": text.encode() for path, text in texts.items()}, root)
    return root
