"""Measure how fast archives are extracted, against other programs; needs Linux, zip and 7z.

python scripts/bench_archives.py                tables on standard output
python scripts/bench_archives.py --runs 7 aes   more runs, of one of the tables

The archives are made by the real `zip -P` and `7z`; /dev/shm is taken for a tmpfs, and /var/tmp for a disk.
Every contestant that is installed runs as a whole process, start-up included, in turn with the others, and
our output is compared with the originals once. What is told are medians with their spread. Ours also hashes
the whole archive (SHA-256), which no other does.
"""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from _bench import DISK, MB, PYTHON, TMPFS, Cost, call, make_files, parser, race, show

PASSWORD = "secret"

_ENGINE = """\
import hashlib, sys
from pathlib import Path
from mmf_win.archives import open_archive
archive = open_archive(Path(sys.argv[1]), lambda: sys.argv[3])
digest = hashlib.sha256() if sys.argv[4:] != ["unhashed"] else None
for done in archive.extract(lambda member: Path(sys.argv[2], member.name), digest=digest):
    pass
"""
_ZIPFILE = """\
import sys, zipfile
zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2], pwd=sys.argv[3].encode())
"""
_PY7ZR = """\
import sys, py7zr
with py7zr.SevenZipFile(sys.argv[1], password=sys.argv[3]) as archive:
    archive.extractall(sys.argv[2])
"""

Extractor = Callable[[Path, Path], Sequence[str | Path]]
"""The command that extracts an archive into a folder."""


def python(code: str, *more: str) -> Extractor:
    """A program in Python."""
    return lambda archive, out: [PYTHON, "-c", code, archive, out, PASSWORD, *more]


ours = python(_ENGINE)
PROGRAMS: dict[str, Extractor] = {
    "Info-ZIP unzip": lambda archive, out: ["unzip", "-q", "-P", PASSWORD, archive, "-d", out],
    "7z": lambda archive, out: ["7z", "x", "-bd", f"-p{PASSWORD}", f"-o{out}", archive],
    "bsdtar": lambda archive, out: ["bsdtar", "-x", "--passphrase", PASSWORD, "-f", archive, "-C", out],
    "**mmfw**": ours,
}


def extracting(program: Extractor, archive: Path, out: Path) -> Callable[[], Cost]:
    """A contestant: it extracts an archive into the folder ``out``, which is empty each time."""

    def extract() -> Cost:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return call(program(archive, out))

    return extract


def usual_sizes(total: int) -> list[int]:
    """Sizes as the dataset's images have them."""
    random = Random(1)
    return [random.randrange(100_000, 400_000) for _ in range(total // 250_000)]


def pack(archive: Path, folder: Path, *command: str) -> Path:
    """An archive of ``folder``, made by ``command``."""
    subprocess.run(
        [*command, str(archive), folder.name], cwd=folder.parent, check=True, stdout=subprocess.DEVNULL
    )
    return archive


def bench_zip(work: Path, disk: Path, runs: int) -> None:
    """The archive of the dataset, small and large, on tmpfs and on a disk."""
    encrypted, out = ("zip", "-qr", "-P", PASSWORD), work / "out"
    tiny = pack(work / "4.zip", make_files(work / "4", usual_sizes(4 * MB)), *encrypted)
    programs = {
        name: extractor
        for name, extractor in PROGRAMS.items()
        if shutil.which(str(extractor(tiny, out)[0])) is not None
    }
    for size in (60, 400):
        folder = make_files(work / str(size), usual_sizes(size * MB))
        archive = pack(work / f"{size}.zip", folder, *encrypted)
        plain = pack(work / f"{size}-plain.zip", folder, "zip", "-qr")
        extracting(ours, archive, out)()
        require_same(folder, out / folder.name)
        contestants = {name: extracting(program, archive, out) for name, program in programs.items()}
        costs = race(contestants | {"mmfw, not encrypted: the limit": extracting(ours, plain, out)}, runs)
        slow, times = extracting(python(_ZIPFILE), tiny, out)(), archive.stat().st_size / tiny.stat().st_size
        costs["Python's zipfile, scaled"] = [Cost(times * slow.wall, times * slow.cpu, slow.memory)]
        show(f"{size} MB on tmpfs", costs)
        on_disk = Path(shutil.copy(archive, disk))
        contestants = {n: extracting(program, on_disk, disk / "out") for n, program in programs.items()}
        show(f"{size} MB on a disk", race(contestants, runs))
        shutil.rmtree(folder)


def bench_aes(work: Path, disk: Path, runs: int) -> None:
    """WinZip's AES-256."""
    folder = make_files(work / "aes", usual_sizes(400 * MB))
    archive = pack(work / "aes.zip", folder, "7z", "a", "-tzip", "-mx=1", "-mem=AES256", f"-p{PASSWORD}")
    programs = {name: PROGRAMS[name] for name in ("7z", "**mmfw**")}
    contestants = {name: extracting(program, archive, work / "out") for name, program in programs.items()}
    show("400 MB with AES-256 on tmpfs", race(contestants, runs))


def bench_7z(work: Path, disk: Path, runs: int) -> None:
    """7z, against the library that reads it for us."""
    folder = make_files(work / "7z", usual_sizes(100 * MB))
    archive = pack(work / "a.7z", folder, "7z", "a", "-t7z", "-mx=1", f"-p{PASSWORD}")
    programs = {
        "py7zr alone": python(_PY7ZR),
        "**mmfw**, hash included": ours,
        "mmfw, no hash": python(_ENGINE, "unhashed"),
    }
    contestants = {name: extracting(program, archive, work / "out") for name, program in programs.items()}
    show("100 MB in a 7z on tmpfs", race(contestants, runs))


def require_same(expected: Path, found: Path) -> None:
    """Compare two folders byte for byte."""
    names = [path.name for path in expected.iterdir()]
    _, wrong, missing = filecmp.cmpfiles(expected, found, names, shallow=False)
    if wrong or missing:
        sys.exit(f"the output differs: {[*wrong, *missing][:3]}")


_TABLES = {"zip": bench_zip, "aes": bench_aes, "7z": bench_7z}


def main() -> None:
    """Make the archives and print the tables."""
    options = parser(__doc__, runs=5)
    options.add_argument("tables", nargs="*", metavar="zip|aes|7z", help="all if none")
    asked = options.parse_args()
    for table in asked.tables or _TABLES:
        with (
            tempfile.TemporaryDirectory(dir=TMPFS) as work,
            tempfile.TemporaryDirectory(dir=DISK) as disk,
        ):
            _TABLES[table](Path(work), Path(disk), asked.runs)


if __name__ == "__main__":
    main()
