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
"""The command that extracts an archive into a folder."""


def python_extractor(code: str, *arguments: str) -> Extractor:
    """A program in Python."""
    return lambda archive, out: [PYTHON, "-c", code, archive, out, PASSWORD, *arguments]


mmfw_extractor = python_extractor(_MMFW_CODE)
PROGRAMS: dict[str, Extractor] = {
    "Info-ZIP unzip": lambda archive, out: ["unzip", "-q", "-P", PASSWORD, archive, "-d", out],
    "7z": lambda archive, out: ["7z", "x", "-bd", f"-p{PASSWORD}", f"-o{out}", archive],
    "bsdtar": lambda archive, out: ["bsdtar", "-x", "--passphrase", PASSWORD, "-f", archive, "-C", out],
    "**mmfw**": mmfw_extractor,
}


def make_extraction(program: Extractor, archive: Path, out: Path) -> Callable[[], Cost]:
    """A contestant: it extracts an archive into the folder ``out``, which is empty each time."""

    def extract() -> Cost:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return measure_command(program(archive, out))

    return extract


def image_sizes(total: int) -> list[int]:
    """Sizes as the dataset's images have them."""
    random = Random(1)
    return [random.randrange(100_000, 400_000) for _ in range(total // 250_000)]


def pack_folder(archive: Path, folder: Path, *command: str) -> Path:
    """An archive of ``folder``, made by ``command``."""
    subprocess.run(
        [*command, str(archive), folder.name], cwd=folder.parent, check=True, stdout=subprocess.DEVNULL
    )
    return archive


def bench_zip(work: Path, disk: Path, runs: int) -> None:
    """The archive of the dataset, small and large, on tmpfs and on a disk."""
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
            contestants | {"mmfw, not encrypted: the limit": make_extraction(mmfw_extractor, plain, out)},
            runs,
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


def bench_aes(work: Path, disk: Path, runs: int) -> None:
    """WinZip's AES-256."""
    folder = make_files(work / "aes", image_sizes(400 * MB))
    archive = pack_folder(
        work / "aes.zip", folder, "7z", "a", "-tzip", "-mx=1", "-mem=AES256", f"-p{PASSWORD}"
    )
    programs = {name: PROGRAMS[name] for name in ("7z", "**mmfw**")}
    contestants = {
        name: make_extraction(program, archive, work / "out") for name, program in programs.items()
    }
    print_costs("400 MB with AES-256 on tmpfs", measure_after_warmup(contestants, runs))


def bench_7z(work: Path, disk: Path, runs: int) -> None:
    """7z, against the library that reads it for us."""
    folder = make_files(work / "7z", image_sizes(100 * MB))
    archive = pack_folder(work / "a.7z", folder, "7z", "a", "-t7z", "-mx=1", f"-p{PASSWORD}")
    programs = {
        "py7zr alone": python_extractor(_PY7ZR_CODE),
        "**mmfw**, hash included": mmfw_extractor,
        "mmfw, no hash": python_extractor(_MMFW_CODE, "unhashed"),
    }
    contestants = {
        name: make_extraction(program, archive, work / "out") for name, program in programs.items()
    }
    print_costs("100 MB in a 7z on tmpfs", measure_after_warmup(contestants, runs))


def require_equal_folders(expected: Path, actual: Path) -> None:
    """Compare two folders byte for byte."""
    names = [path.name for path in expected.iterdir()]
    _, wrong, missing = filecmp.cmpfiles(expected, actual, names, shallow=False)
    if wrong or missing:
        sys.exit(f"the output differs: {[*wrong, *missing][:3]}")


_TABLES = {"zip": bench_zip, "aes": bench_aes, "7z": bench_7z}


def main() -> None:
    """Make the archives and print the tables."""
    options = make_parser(__doc__, runs=5)
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
