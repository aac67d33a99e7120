"""Sources of MMF.

Each source fetches one fixed version into a folder with its manifest. Neither trusts the network: PyPI's
wheel is pinned by its SHA-256. GitHub may repack its archives, so its commit is pinned by the ID of the Git
tree.
"""

from __future__ import annotations

import gzip
import hashlib
import logging
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from mmf_win.archives import open_archive
from mmf_win.download import download
from mmf_win.errors import ArchiveError, MmfEnvironmentError
from mmf_win.integrity.digest import GitTreeEntry, git_object_id, git_tree_id
from mmf_win.integrity.manifest import Manifest, ManifestEntry, ManifestSource
from mmf_win.paths import is_portable
from mmf_win.unpacking.extract import choose_all, extract_to_staging
from mmf_win.unpacking.staging import Staging

_GITHUB_HINT = "run `mmfw setup --mmf github`, which does not need pip"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PypiWheel:
    """A wheel from PyPI, or from the index or mirror that pip is configured to use.

    MMF's wheel is tagged for Python 3.8 on Linux, but it is pure Python except for one module that Hateful
    Memes never loads. pip refuses to install it elsewhere, but downloads it on any system, and mmfw unpacks
    it.
    """

    version: str
    wheel_sha256: str

    name: Literal["pypi"] = "pypi"
    commit: None = None

    def fetch(self, staging: Staging) -> Manifest:
        """Download the wheel with pip, unpack it into ``staging.new_dir`` and verify its SHA-256.

        Returns:
            The manifest of the unpacked files.

        Raises:
            MmfEnvironmentError: The download failed, or the wheel is not the published one.
        """
        _log.info("downloading MMF %s with pip", self.version)
        wheel = self._download_wheel(staging.folder)
        digest = hashlib.sha256()
        files: Mapping[str, ManifestEntry] = {}
        with suppress(ArchiveError):
            archive = open_archive(wheel)
            files = extract_to_staging(archive, choose_all, staging, f"Unpacking MMF {self.version}", digest)
        if not files or digest.hexdigest() != self.wheel_sha256:
            message = f"{wheel.name} is not the wheel published on PyPI"
            hint = f"check which index pip uses (`pip config list`), or {_GITHUB_HINT}"
            raise MmfEnvironmentError(message, hint=hint)
        return Manifest(staging.new_dir, files, "published", ManifestSource.from_path(wheel, self.wheel_sha256))

    def _download_wheel(self, folder: Path) -> Path:
        pip = [sys.executable, "-X", "utf8", "-m", "pip", "--no-input", "--disable-pip-version-check"]
        system = "--python-version=3.8 --implementation=cp --abi=cp38 --platform=manylinux1_x86_64"
        wheel = ["--only-binary=:all:", *system.split(), f"mmf=={self.version}"]
        process = subprocess.run(
            [*pip, "download", "--no-deps", "--dest", str(folder), *wheel],
            cwd=folder,  # files in the user's folder must not replace libraries
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        wheels = list(folder.glob("*.whl"))
        if process.returncode == 0 and wheels:
            return wheels[0]
        if "No module named pip" in process.stdout:
            message = f"{sys.executable} has no pip"
            raise MmfEnvironmentError(message, hint=f"run `python -m ensurepip`, or {_GITHUB_HINT}")
        output = "\n".join(f"  {line}" for line in process.stdout.strip().splitlines()[-10:])
        message = f"pip cannot download mmf=={self.version}:\n{output}"
        raise MmfEnvironmentError(message, hint=f"check the network connection and pip's index, or {_GITHUB_HINT}")


@dataclass(frozen=True)
class GithubArchive:
    """The source archive of a commit on GitHub.

    Symbolic links become text files that contain the path of the target on every system, as Git does on
    Windows, so a copy can be verified, moved and unpacked without the permission to create links.
    """

    version: str
    commit: str
    tree_id: str
    url: str

    name: Literal["github"] = "github"

    def fetch(self, staging: Staging) -> Manifest:
        """Download the archive, unpack it into ``staging.new_dir`` and verify the ID of its Git tree.

        Returns:
            The manifest of the unpacked files.

        Raises:
            MmfEnvironmentError: The download failed, or the archive is damaged or not that of the commit.
        """
        archive = staging.folder / f"mmf-{self.commit[:12]}.tar.gz"
        sha256 = download(self.url, archive, f"MMF {self.version} from GitHub")
        files: dict[str, GitTreeEntry] = {}
        entries: dict[str, ManifestEntry] = {}
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for name, mode, content in _extract_members(tar, staging.new_dir):
                    files[name] = mode, git_object_id(content)
                    entries[name] = ManifestEntry(hashlib.sha256(content).hexdigest(), len(content))
        except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            message = f"{self.url}: damaged archive: {error}"
            raise MmfEnvironmentError(message, hint="run the same command again") from error
        if (tree := git_tree_id(files)) != self.tree_id:
            difference = f"tree ID {tree}, expected {self.tree_id}"
            message = f"{self.url}: archive is not commit {self.commit} ({difference})"
            raise MmfEnvironmentError(message, hint="try another network; a proxy may be changing downloads")
        return Manifest(staging.new_dir, entries, "published", ManifestSource.from_path(archive, sha256))


def _extract_members(archive: tarfile.TarFile, root: Path) -> Iterator[tuple[str, str, bytes]]:
    """Write an archive's files into ``root`` without the top folder.

    Yields:
        The relative path, the Git mode and the content of each file.

    Raises:
        tarfile.TarError: A member cannot be unpacked safely.
    """
    for member in archive:
        parts = member.name.split("/")[1:]
        if member.isdir() or not parts:
            continue
        if not (member.isfile() or member.issym()) or not all(map(is_portable, parts)):
            raise tarfile.TarError(f"{member.name} cannot be unpacked safely")
        member_file = archive.extractfile(member) if member.isfile() else None
        content = member_file.read() if member_file else member.linkname.encode()
        file = root.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        mode = "120000" if member.issym() else "100755" if member.mode & 0o100 else "100644"
        yield "/".join(parts), mode, content


PYPI = PypiWheel("1.0.0rc10", wheel_sha256="e416250ea75fd21dc89921f76c280f87c7a60fd1e25287f778bb8f470f83e7a0")
_COMMIT = "b0ffc7fba39f210f833c127362146aec01a2f259"
GITHUB = GithubArchive(
    version="1.0.0rc12",
    commit=_COMMIT,
    tree_id="bb51710ea1bb3d3b157968574ba06cc321804188",
    url=f"https://github.com/facebookresearch/mmf/archive/{_COMMIT}.tar.gz",
)
#: A source of one fixed version of MMF.
MmfSource: TypeAlias = PypiWheel | GithubArchive
SOURCES: tuple[MmfSource, ...] = (PYPI, GITHUB)
