"""Measure how fast archives are extracted, against other programs; needs Linux, zip, unzip, 7z and bsdtar.

python scripts/bench_archives.py                          tables on standard output
python scripts/bench_archives.py --runs 7 --disk /var/tmp     more runs; this folder is on a disk
python scripts/bench_archives.py --only zip               one of the tables

The archives hold true PNGs, and are made by the real `zip -P` and `7z`. Every contestant runs as a whole
process, start-up included, in turn with the others, and its output is compared with the originals once.
Pythons find their modules compiled, as after an installation. What is told are medians. Ours also hashes the
whole archive (SHA-256), which no other does.
"""

from __future__ import annotations

import argparse
import filecmp
import multiprocessing
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

PASSWORD = "secret"
MB = 1_000_000

_ENGINE = """\
import hashlib, sys
from pathlib import Path
from mmf_win.archives import open_archive
with open_archive(Path(sys.argv[1]), lambda: sys.argv[3]) as archive:
    wanted = {member.name: Path(sys.argv[2], member.name) for member in archive.members}
    for done in archive.extract(wanted, digest=hashlib.sha256() if sys.argv[4:] != ["unhashed"] else None):
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


@dataclass(frozen=True)
class Contestant:
    """A program that extracts an archive.

    Attributes:
        name: for the table.
        archive: what it extracts.
        command: what to run, for an archive and a folder to write to.
        scale: by how much its figures are multiplied, where its archive is a small one.
    """

    name: str
    archive: Path
    command: Callable[[Path, Path], list[str]]
    scale: float = 1


@dataclass(frozen=True)
class Cost:
    """Of one run: seconds on the clock, seconds of processor time, and the peak of memory in MiB."""

    wall: float
    cpu: float
    memory: float


def python(code: str, *more: str) -> Callable[[Path, Path], list[str]]:
    """A contestant's command that runs ``code``."""
    return lambda archive, out: [sys.executable, "-c", code, str(archive), str(out), PASSWORD, *more]


ours = python(_ENGINE)


def unzip(archive: Path, out: Path) -> list[str]:
    """Info-ZIP."""
    return ["unzip", "-q", "-P", PASSWORD, str(archive), "-d", str(out)]


def seven_zip(archive: Path, out: Path) -> list[str]:
    """p7zip or 7-Zip."""
    return ["7z", "x", "-bd", f"-p{PASSWORD}", f"-o{out}", str(archive)]


def bsdtar(archive: Path, out: Path) -> list[str]:
    """libarchive."""
    return ["bsdtar", "-x", "--passphrase", PASSWORD, "-f", str(archive), "-C", str(out)]


def measure(contestant: Contestant, out: Path) -> Cost:
    """Run once, into an empty folder."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    started = time.perf_counter()
    command = contestant.command(contestant.archive, out)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_environment(out.parent))
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{contestant.name} failed")
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(wall * contestant.scale, cpu * contestant.scale, usage.ru_maxrss / 1024)


def _environment(work: Path) -> dict[str, str]:
    """With a place for compiled modules, which a checkout may lack; compiling takes as long as the start."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(work / "pycache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def compete(contestants: Sequence[Contestant], runs: int, work: Path) -> dict[str, Cost]:
    """The median cost of each, run in turn, so that a busy moment of the machine hits all alike."""
    costs: dict[str, list[Cost]] = {contestant.name: [] for contestant in contestants}
    for contestant in contestants:  # compiles modules, and has the system read the programs
        measure(contestant, work / "out")
    for _ in range(runs):
        for contestant in contestants:
            costs[contestant.name].append(measure(contestant, work / "out"))
    shutil.rmtree(work / "out")
    return {
        name: Cost(*(statistics.median(values) for values in zip(*map(_fields, all_), strict=True)))
        for name, all_ in costs.items()
    }


def _fields(cost: Cost) -> tuple[float, float, float]:
    return cost.wall, cost.cpu, cost.memory


def tell(title: str, costs: dict[str, Cost], reference: str) -> None:
    """Print a table in Markdown; the last two columns compare with ``reference``."""
    base = costs[reference]
    print(f"\n### {title}\n")
    print("| | wall s | CPU s | peak MiB | × by wall | × by CPU |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, cost in costs.items():
        times = f"{base.wall / cost.wall:.2f} | {base.cpu / cost.cpu:.2f}"
        print(f"| {name} | {cost.wall:.2f} | {cost.cpu:.2f} | {cost.memory:.0f} | {times} |")
    sys.stdout.flush()


def png(size: int, random: Random) -> bytes:
    """A true PNG of about so many bytes; noise, which deflate stores."""
    width = max(1, int((size / 3) ** 0.5))
    rows = [b"\0" + random.randbytes(3 * width) for _ in range(max(1, size // (3 * width + 1)))]
    header = struct.pack(">2I5B", width, len(rows), 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows), 1)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def usual_sizes(total: int, random: Random) -> Iterable[int]:
    """Sizes as the dataset's images have them."""
    while total > 0:
        size = random.randrange(100_000, 400_000)
        total -= size
        yield size


def unequal_sizes(total: int, random: Random) -> Iterable[int]:
    """Sizes from 1 kB to 10 MB; each power of ten in between holds about as many members."""
    while total > 0:
        size = int(10 ** random.uniform(3, 7))
        total -= size
        yield size


def make_images(folder: Path, sizes: Iterable[int]) -> Path:
    """A folder of PNGs of these sizes."""
    # By another process: the peak of memory that is measured later begins with what this one has ever had.
    process = multiprocessing.Process(target=_draw, args=(folder, list(sizes)))
    process.start()
    process.join()
    return folder


def _draw(folder: Path, sizes: Iterable[int]) -> None:
    random = Random(1)
    (folder / "img").mkdir(parents=True)
    for number, size in enumerate(sizes):
        (folder / "img" / f"{number:05}.png").write_bytes(png(size, random))


def pack(archive: Path, folder: Path, *command: str) -> Path:
    """An archive of ``folder``, made by ``command``."""
    subprocess.run(
        [*command, str(archive), folder.name], cwd=folder.parent, check=True, stdout=subprocess.DEVNULL
    )
    return archive


def zipped(archive: Path, folder: Path, *options: str) -> Path:
    """A zip, made by Info-ZIP's zip."""
    return pack(archive, folder, "zip", "-qr", *options)


def bench_zip(work: Path, disk: Path, runs: int) -> None:
    """The archive of the dataset, small and large, on tmpfs and on a disk."""
    tiny = zipped(work / "4.zip", make_images(work / "4", usual_sizes(4 * MB, Random(1))), "-P", PASSWORD)
    for size in (60, 400):
        folder = make_images(work / str(size), usual_sizes(size * MB, Random(1)))
        archive = zipped(work / f"{size}.zip", folder, "-P", PASSWORD)
        plain = zipped(work / f"{size}-plain.zip", folder)
        contestants = [
            Contestant("Info-ZIP unzip", archive, unzip),
            Contestant("7z", archive, seven_zip),
            Contestant("bsdtar", archive, bsdtar),
            Contestant("**mmfw**", archive, ours),
            Contestant("mmfw, not encrypted: the limit", plain, ours),
        ]
        measure(contestants[3], work / "out")
        require_same(folder, work / "out" / folder.name)
        costs = compete(contestants, runs, work)
        scale = archive.stat().st_size / tiny.stat().st_size
        slow = Contestant("Python's zipfile (scaled)", tiny, python(_ZIPFILE), scale)
        tell(f"{size} MB on tmpfs", costs | compete([slow], 1, work), "Info-ZIP unzip")
        on_disk = Path(shutil.copy(archive, disk))
        disk_contestants = [Contestant(c.name, on_disk, c.command) for c in contestants[:4]]
        tell(f"{size} MB on a disk", compete(disk_contestants, runs, disk), "Info-ZIP unzip")
        on_disk.unlink()
        shutil.rmtree(folder)


def bench_growth(work: Path, runs: int) -> None:
    """Archives of 100, 400 and 1600 MB, and one with members of very unequal size, in turn.

    What the same process takes for an archive of one tiny image is its start. The cost of 100 MB is told as
    it was measured, and without that.
    """
    archives = {
        "start": [1000],
        "100 MB": usual_sizes(100 * MB, Random(1)),
        "400 MB": usual_sizes(400 * MB, Random(1)),
        "1600 MB": usual_sizes(1600 * MB, Random(1)),
        "400 MB, members from 1 kB to 10 MB": unequal_sizes(400 * MB, Random(1)),
    }
    contestants = []
    for number, (name, sizes) in enumerate(archives.items()):
        folder = make_images(work / "growth", sizes)
        archive = zipped(work / f"{number}.zip", folder, "-P", PASSWORD)
        shutil.rmtree(folder)
        contestants.append(Contestant(name, archive, ours))
    costs = compete(contestants, runs, work)
    start = costs["start"]
    print(f"The start: {start.wall:.3f} s, {start.cpu:.3f} s of processor time.\n")
    print("| archive | wall s | CPU s | without the start: wall s | CPU s | peak MiB |")
    print("|---|--:|--:|--:|--:|--:|")
    for contestant in contestants[1:]:
        cost = costs[contestant.name]
        share = contestant.archive.stat().st_size / 100 / MB
        gross = f"{cost.wall / share:.3f} | {cost.cpu / share:.3f}"
        net = f"{(cost.wall - start.wall) / share:.3f} | {(cost.cpu - start.cpu) / share:.3f}"
        print(f"| {contestant.name} | {gross} | {net} | {cost.memory:.0f} |")
        contestant.archive.unlink()


def bench_aes(work: Path, runs: int) -> None:
    """WinZip's AES-256."""
    folder = make_images(work / "aes", usual_sizes(400 * MB, Random(1)))
    archive = pack(work / "aes.zip", folder, "7z", "a", "-tzip", "-mx=1", "-mem=AES256", f"-p{PASSWORD}")
    contestants = [Contestant("7z", archive, seven_zip), Contestant("**mmfw**", archive, ours)]
    tell("400 MB with AES-256 on tmpfs", compete(contestants, runs, work), "7z")
    shutil.rmtree(folder)


def bench_7z(work: Path, runs: int) -> None:
    """7z, against the library that reads it for us."""
    folder = make_images(work / "7z", usual_sizes(100 * MB, Random(1)))
    archive = pack(work / "a.7z", folder, "7z", "a", "-t7z", "-mx=1", f"-p{PASSWORD}")
    contestants = [
        Contestant("py7zr alone", archive, python(_PY7ZR)),
        Contestant("**mmfw**, hash included", archive, ours),
        Contestant("mmfw, no hash", archive, python(_ENGINE, "unhashed")),
    ]
    tell("100 MB in a 7z on tmpfs", compete(contestants, runs, work), "py7zr alone")
    shutil.rmtree(folder)


def require_same(expected: Path, found: Path) -> None:
    """Compare two folders byte for byte."""
    names = [path.relative_to(expected).as_posix() for path in expected.rglob("*") if path.is_file()]
    _, wrong, missing = filecmp.cmpfiles(expected, found, names, shallow=False)
    if wrong or missing:
        sys.exit(f"the output differs: {[*wrong, *missing][:3]}")


def main() -> None:
    """Make the archives and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of which the median is told")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="a folder in memory")
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="a folder on a disk")
    parser.add_argument("--only", choices=["zip", "growth", "aes", "7z"], help="make this table alone")
    options = parser.parse_args()

    from mmf_win.archives.zip_extract import engine

    print(f"{engine()}; load before: {os.getloadavg()[0]:.1f}; medians of {options.runs}", flush=True)
    with (
        tempfile.TemporaryDirectory(dir=options.tmpfs) as work,
        tempfile.TemporaryDirectory(dir=options.disk) as disk,
    ):
        if options.only in (None, "zip"):
            bench_zip(Path(work), Path(disk), options.runs)
        if options.only in (None, "growth"):
            print("\n### For 100 MB of archives of different sizes\n")
            bench_growth(Path(work), options.runs)
        if options.only in (None, "aes"):
            bench_aes(Path(work), options.runs)
        if options.only in (None, "7z"):
            bench_7z(Path(work), options.runs)
    print(f"\nload after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
