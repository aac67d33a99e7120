"""Measure how fast archives are extracted, compared with other programs; needs Linux, zip and 7z.

python scripts/bench_archives.py                tables on standard output
python scripts/bench_archives.py --runs 7 aes   more runs, of one of the tables

The archives are created by the real `zip -P` and `7z`. /dev/shm is used as a tmpfs, and /var/tmp as a disk.
Every installed contestant runs as a complete process, including start-up, in turn with the others, and the
output of mmfw is compared with the originals once. The tables show medians with their spread. Only mmfw also
hashes the complete archive (SHA-256).
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

from _bench import (
    DISK,
    MB,
    PYTHON,
    TMPFS,
    Cost,
    make_files,
    make_parser,
    measure_after_warmup,
    measure_command,
    print_costs,
)

PASSWORD = "secret"

_MMFW_CODE = """\
import hashlib, sys
from pathlib import Path
from mmf_win.archives import open_archive
archive = open_archive(Path(sys.argv[1]), lambda: sys.argv[3])
digest = hashlib.sha256() if sys.argv[4:] != ["unhashed"] else None
for done in archive.extract(lambda member: Path(sys.argv[2], member.name), digest=digest):
    pass
"""
_ZIPFILE_CODE = """\
import sys, zipfile
zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2], pwd=sys.argv[3].encode())
"""
_PY7ZR_CODE = """\
import sys, py7zr
with py7zr.SevenZipFile(sys.argv[1], password=sys.argv[3]) as archive:
    archive.extractall(sys.argv[2])
"""

Extractor = Callable[[Path, Path], Sequence[str | Path]]
"""Returns the command that extracts an archive into a folder."""


def python_extractor(code: str, *arguments: str) -> Extractor:
    """Return an extractor that is a Python program."""
    return lambda archive, out: [PYTHON, "-c", code, archive, out, PASSWORD, *arguments]


mmfw_extractor = python_extractor(_MMFW_CODE)
PROGRAMS: dict[str, Extractor] = {
    "Info-ZIP unzip": lambda archive, out: ["unzip", "-q", "-P", PASSWORD, archive, "-d", out],
    "7z": lambda archive, out: ["7z", "x", "-bd", f"-p{PASSWORD}", f"-o{out}", archive],
    "bsdtar": lambda archive, out: ["bsdtar", "-x", "--passphrase", PASSWORD, "-f", archive, "-C", out],
    "**mmfw**": mmfw_extractor,
}


def make_extraction(program: Extractor, archive: Path, out: Path) -> Callable[[], Cost]:
    """Return a contestant that extracts an archive into the folder ``out``, which is emptied each time."""

    def extract() -> Cost:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return measure_command(program(archive, out))

    return extract


def image_sizes(total: int) -> list[int]:
    """Return file sizes like those of the dataset's images."""
    random = Random(1)
    return [random.randrange(100_000, 400_000) for _ in range(total // 250_000)]


def pack_folder(archive: Path, folder: Path, *command: str) -> Path:
    """Pack a folder by ``command`` and return the archive."""
    subprocess.run([*command, str(archive), folder.name], cwd=folder.parent, check=True, stdout=subprocess.DEVNULL)
    return archive


def bench_zip(work: Path, disk: Path, runs: int) -> None:
    """Compare extractions of small and large archives like the dataset's, on tmpfs and on a disk."""
    encrypted, out = ("zip", "-qr", "-P", PASSWORD), work / "out"
    tiny = pack_folder(work / "4.zip", make_files(work / "4", image_sizes(4 * MB)), *encrypted)
    programs = {
        name: extractor
        for name, extractor in PROGRAMS.items()
        if shutil.which(str(extractor(tiny, out)[0])) is not None
    }
    for size in (60, 400):
        folder = make_files(work / str(size), image_sizes(size * MB))
        archive = pack_folder(work / f"{size}.zip", folder, *encrypted)
        plain = pack_folder(work / f"{size}-plain.zip", folder, "zip", "-qr")
        make_extraction(mmfw_extractor, archive, out)()
        require_equal_folders(folder, out / folder.name)
        contestants = {name: make_extraction(program, archive, out) for name, program in programs.items()}
        costs = measure_after_warmup(
            contestants | {"mmfw, not encrypted: the limit": make_extraction(mmfw_extractor, plain, out)}, runs
        )
        slow, times = (
            make_extraction(python_extractor(_ZIPFILE_CODE), tiny, out)(),
            archive.stat().st_size / tiny.stat().st_size,
        )
        costs["Python's zipfile, scaled"] = [Cost(times * slow.wall, times * slow.cpu, slow.memory)]
        print_costs(f"{size} MB on tmpfs", costs)
        on_disk = Path(shutil.copy(archive, disk))
        contestants = {n: make_extraction(program, on_disk, disk / "out") for n, program in programs.items()}
        print_costs(f"{size} MB on a disk", measure_after_warmup(contestants, runs))
        shutil.rmtree(folder)


def bench_aes(work: Path, _disk: Path, runs: int) -> None:
    """Compare extractions of WinZip's AES-256."""
    folder = make_files(work / "aes", image_sizes(400 * MB))
    archive = pack_folder(work / "aes.zip", folder, "7z", "a", "-tzip", "-mx=1", "-mem=AES256", f"-p{PASSWORD}")
    programs = {name: PROGRAMS[name] for name in ("7z", "**mmfw**")}
    contestants = {name: make_extraction(program, archive, work / "out") for name, program in programs.items()}
    print_costs("400 MB with AES-256 on tmpfs", measure_after_warmup(contestants, runs))


def bench_7z(work: Path, _disk: Path, runs: int) -> None:
    """Compare extractions of a 7z with py7zr, the library that mmfw uses."""
    folder = make_files(work / "7z", image_sizes(100 * MB))
    archive = pack_folder(work / "a.7z", folder, "7z", "a", "-t7z", "-mx=1", f"-p{PASSWORD}")
    programs = {
        "py7zr alone": python_extractor(_PY7ZR_CODE),
        "**mmfw**, hash included": mmfw_extractor,
        "mmfw, no hash": python_extractor(_MMFW_CODE, "unhashed"),
    }
    contestants = {name: make_extraction(program, archive, work / "out") for name, program in programs.items()}
    print_costs("100 MB in a 7z on tmpfs", measure_after_warmup(contestants, runs))


def require_equal_folders(expected: Path, actual: Path) -> None:
    """Exit unless two folders are equal byte for byte."""
    names = [path.name for path in expected.iterdir()]
    _, different, missing = filecmp.cmpfiles(expected, actual, names, shallow=False)
    if different or missing:
        sys.exit(f"the output differs: {[*different, *missing][:3]}")


_TABLES = {"zip": bench_zip, "aes": bench_aes, "7z": bench_7z}


def main() -> None:
    """Create the archives and print the tables."""
    parser = make_parser(__doc__, runs=5)
    parser.add_argument("tables", nargs="*", metavar="zip|aes|7z", help="all if none")
    options = parser.parse_args()
    for table in options.tables or _TABLES:
        with tempfile.TemporaryDirectory(dir=TMPFS) as work, tempfile.TemporaryDirectory(dir=DISK) as disk:
            _TABLES[table](Path(work), Path(disk), options.runs)


if __name__ == "__main__":
    main()
