"""Where MMF comes from, and what an intact copy of it looks like.

Each source brings one fixed version into a folder and can tell later whether every file is still what it
was. Neither trusts the network: PyPI's wheel is pinned by its hash and by that of its RECORD, which lists all
other files; GitHub may pack its archives again at any time, so there the id of git's tree is pinned.
"""

from __future__ import annotations

import gzip
import logging
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from mmf_win.errors import MmfError, PipFailed
from mmf_win.files import read_json, write_json
from mmf_win.integrity.digest import file_digest
from mmf_win.integrity.finding import Difference, differences
from mmf_win.integrity.git_tree import GitFile, Mode, blob_id, file_blob_id, tree_id
from mmf_win.integrity.wheel_record import read_record, record_identity
from mmf_win.paths import is_portable
from mmf_win.upstream.download import download

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PypiWheel:
    """A wheel from PyPI, or from whatever index or mirror pip is set to.

    MMF's wheel is for Python 3.8 on Linux, but pure Python except for one module that Hateful Memes never
    loads. pip refuses to install it elsewhere, but downloads it for any system and leaves the rest to us.
    """

    version: str
    wheel_sha256: str
    record_sha256: str

    name: Literal["pypi"] = "pypi"
    commit: None = None

    def fetch(self, root: Path, scratch: Path) -> None:
        """Download the wheel by pip into ``scratch``, check its hash and unpack it into a new ``root``.

        Raises:
            MmfError: it cannot be had, or it is not what was pinned.
        """
        _log.info("Getting MMF %s by pip.", self.version)
        wheel = self._download(scratch)
        if file_digest(wheel).hex() != self.wheel_sha256:
            raise PipFailed(
                f"{wheel.name} is not the wheel that PyPI publishes",
                hint="check which index pip uses (`pip config list`)",
            )
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(root)

    def differences(self, root: Path) -> Iterator[Difference]:
        """Files that are not as the wheel's RECORD says, and RECORD itself if it is not the wheel's."""
        name = f"mmf-{self.version}.dist-info/RECORD"
        record = root / name
        if not record.is_file():
            yield Difference("missing", name)
        elif file_digest(record).hex() != self.record_sha256:
            yield Difference("changed", name)
        else:
            yield from differences(root, read_record(record), record_identity)

    def _download(self, folder: Path) -> Path:
        pip = [sys.executable, "-X", "utf8", "-m", "pip", "--no-input", "--disable-pip-version-check"]
        system = "--python-version=3.8 --implementation=cp --abi=cp38 --platform=manylinux1_x86_64"
        wheel = ["--only-binary=:all:", *system.split(), f"mmf=={self.version}"]
        done = subprocess.run(
            [*pip, "download", "--no-deps", "--dest", str(folder), *wheel],
            cwd=folder,  # the user's files must not stand in for libraries
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        wheels = list(folder.glob("*.whl"))
        if done.returncode == 0 and wheels:
            return wheels[0]
        if "No module named pip" in done.stdout:
            raise PipFailed(f"{sys.executable} has no pip", hint="run `python -m ensurepip`")
        said = "\n".join(f"  {line}" for line in done.stdout.strip().splitlines()[-10:])
        raise PipFailed(
            f"pip cannot download mmf=={self.version}:\n{said}", hint="check the connection and pip's index"
        )


@dataclass(frozen=True)
class GithubArchive:
    """The source archive of a commit on GitHub.

    Symbolic links become text files that hold the target's path, on every system alike, as git itself
    does on Windows; so a copy can be verified, moved and unpacked without the right to make links.
    """

    version: str
    commit: str
    tree: str
    url: str

    name: Literal["github"] = "github"

    def fetch(self, root: Path, scratch: Path) -> None:
        """Download the archive, unpack it and note the mode and id of each file."""
        archive = scratch / "mmf.tar.gz"
        download(self.url, archive, f"MMF {self.version} from GitHub")
        try:
            with tarfile.open(archive, "r:gz") as opened:
                files = dict(_unpack(opened, root))
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise MmfError(
                f"what {self.url} sent is damaged or no archive: {error}", hint="run the same command again"
            ) from error
        if tree_id(files) != self.tree:
            raise MmfError(
                f"what {self.url} sent is not commit {self.commit}: the id of its tree is {tree_id(files)}, "
                f"not {self.tree}",
                hint="something on the way changes downloads; try another network",
            )
        write_json(root / _MANIFEST, {path: [file.mode, file.blob] for path, file in sorted(files.items())})

    def differences(self, root: Path) -> Iterator[Difference]:
        """Files whose id is not the noted one, and the notes themselves if they do not add up to the tree."""
        try:
            noted = {path: GitFile(mode, blob) for path, (mode, blob) in read_json(root / _MANIFEST).items()}
            if tree_id(noted) != self.tree:
                raise ValueError("the notes on another tree")
        except FileNotFoundError:
            yield Difference("missing", _MANIFEST)
        except (ValueError, TypeError, AttributeError):
            yield Difference("changed", _MANIFEST)
        else:
            yield from differences(root, {path: file.blob for path, file in noted.items()}, file_blob_id)


def _unpack(archive: tarfile.TarFile, root: Path) -> Iterator[tuple[str, GitFile]]:
    """Write an archive's files below ``root``, without its top folder, and yield each as git sees it."""
    root.mkdir(parents=True)
    for member in archive:
        parts = member.name.split("/")[1:]
        if member.isdir() or not parts:
            continue
        if not (member.isfile() or member.issym()) or not all(map(is_portable, parts)):
            raise tarfile.TarError(f"{member.name} cannot be unpacked safely")
        packed = archive.extractfile(member) if member.isfile() else None
        content = packed.read() if packed else member.linkname.encode()
        file = root.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        mode: Mode = "120000" if member.issym() else "100755" if member.mode & 0o100 else "100644"
        yield "/".join(parts), GitFile(mode, blob_id(content))


_MANIFEST = "mmfw-manifest.json"

PYPI = PypiWheel(
    version="1.0.0rc10",
    wheel_sha256="e416250ea75fd21dc89921f76c280f87c7a60fd1e25287f778bb8f470f83e7a0",
    record_sha256="91f19590d7d1f69e9598de1c086757a54023cbacebd1e826d8c6e9b41fa0833d",
)
_COMMIT = "b0ffc7fba39f210f833c127362146aec01a2f259"
GITHUB = GithubArchive(
    version="1.0.0rc12",
    commit=_COMMIT,
    tree="bb51710ea1bb3d3b157968574ba06cc321804188",
    url=f"https://github.com/facebookresearch/mmf/archive/{_COMMIT}.tar.gz",
)
MmfSource: TypeAlias = PypiWheel | GithubArchive
"""A way to get one fixed version of MMF."""
SOURCES: tuple[MmfSource, ...] = (PYPI, GITHUB)
