"""Measure how fast features are unpacked and verified, against other programs; needs Linux, tar and numpy.

python scripts/bench_integrity.py                                tables on standard output
python scripts/bench_integrity.py --runs 7 --disk /var/tmp       more runs; this folder is on a disk

The archive resembles MMF's features: one large data.mdb of float32 numbers, of which the negative ones were
set to zero, and a few small files; packed by the real `tar czf`. Every contestant runs as a whole process,
start-up included, in turn with the others. What is told are medians. Ours hashes the archive and each file
(SHA-256), flushes them to the disk and writes the manifest; no other does any of that. The manifest is then
checked by the real `sha256sum --check`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from bench_archives import MB, Contestant, compete, measure, tell

_EXTRACT = """\
import sys
from pathlib import Path
from mmf_win.unpacking.extract import extract_verified
extract_verified(Path(sys.argv[1]), Path(sys.argv[2]))
"""
_UNPACK = "import shutil, sys; shutil.unpack_archive(sys.argv[1], sys.argv[2])"
_REHASH = """\
import sys
from pathlib import Path
from mmf_win.integrity.manifest import Manifest
from mmf_win.integrity.verify import verify
assert verify(Manifest.load(Path(sys.argv[1])), full=True) == []
"""
_RECORD = """\
import sys
from pathlib import Path
from mmf_win.integrity.verify import record
folder = Path(sys.argv[1])
record(folder, [path.name for path in folder.iterdir()])
"""
_CACHED = """\
import sys, time
from pathlib import Path
from mmf_win.integrity.manifest import Manifest
from mmf_win.integrity.verify import verify
started = time.perf_counter()
assert verify(Manifest.load(Path(sys.argv[1]))) == []
print(time.perf_counter() - started)
"""


def ours(code: str, archive: Path, out: Path) -> list[str]:
    """mmfw, or what else Python can do."""
    return [sys.executable, "-c", code, str(archive), str(out)]


def sha256sum(folder: Path, _: Path) -> list[str]:
    """As many of them side by side as there are processors."""
    find = f"find '{folder}' -type f ! -name 'SHA256SUMS*' -print0"
    return ["sh", "-c", f"{find} | xargs -0 -P {os.cpu_count()} -n 100 sha256sum"]


def make_features(folder: Path, size: int) -> Path:
    """A folder of so many bytes."""
    # By another process: the peak of memory that is measured later begins with what this one has ever had.
    process = multiprocessing.Process(target=_write_features, args=(folder, size))
    process.start()
    process.join()
    return folder


def _write_features(folder: Path, size: int) -> None:
    import numpy as np

    (folder / "detectron.lmdb").mkdir(parents=True)
    random = np.random.default_rng(1)
    with (folder / "detectron.lmdb" / "data.mdb").open("wb") as file:
        while file.tell() < size:
            file.write(np.maximum(random.standard_normal(4 << 20, dtype=np.float32), 0).tobytes())
    write_small(folder / "extras", 100, 20_000)


def write_small(folder: Path, count: int, size: int) -> Path:
    """So many files of random bytes."""
    folder.mkdir()
    random = Random(1)
    for number in range(count):
        (folder / f"{number:05}.png").write_bytes(random.randbytes(size))
    return folder


def bench_extraction(archive: Path, work: Path, runs: int, where: str) -> None:
    """From a tar.gz to files."""
    contestants = [
        Contestant("tar xf", archive, lambda path, out: ["tar", "xf", str(path), "-C", str(out)]),
        Contestant("shutil.unpack_archive", archive, lambda path, out: ours(_UNPACK, path, out)),
        Contestant("**mmfw**, hashes and manifest included", archive, lambda p, out: ours(_EXTRACT, p, out)),
    ]
    tell(f"Extraction on {where}", compete(contestants, runs, work), "tar xf")


def bench_rehash(title: str, folder: Path, work: Path, runs: int) -> None:
    """Every file against its manifest."""
    contestants = [
        Contestant("xargs sha256sum", folder, sha256sum),
        Contestant("**mmfw**", folder, lambda path, out: ours(_REHASH, path, out)),
    ]
    tell(title, compete(contestants, runs, work), "xargs sha256sum")


def bench_cached(folder: Path, runs: int) -> None:
    """Files that nobody has touched since their last check."""

    def check() -> float:
        return float(subprocess.run(ours(_CACHED, folder, folder), check=True, capture_output=True).stdout)

    seconds = statistics.median(check() for _ in range(runs))
    print(f"\nA check of 12,000 files that were not touched since the last one: {seconds:.3f} s.")


def main() -> None:
    """Make the files and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="of which the median is told")
    parser.add_argument("--size", type=int, default=400, help="of data.mdb in MB")
    parser.add_argument("--tmpfs", type=Path, default=Path("/dev/shm"), help="a folder in memory")
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), help="a folder on a disk")
    options = parser.parse_args()

    print(f"load before: {os.getloadavg()[0]:.1f}; medians of {options.runs}", flush=True)
    with (
        tempfile.TemporaryDirectory(dir=options.tmpfs) as tmpfs,
        tempfile.TemporaryDirectory(dir=options.disk) as disk,
    ):
        work = Path(tmpfs)
        features = make_features(work / "features", options.size * MB)
        archive = work / "features.tar.gz"
        subprocess.run(["tar", "czf", str(archive), "-C", str(features), "."], check=True)
        shutil.rmtree(features)
        packed = archive.stat().st_size // MB
        print(f"\n{packed} MB unpack to {options.size} MB and 100 small files.", flush=True)
        bench_extraction(archive, work, options.runs, "tmpfs")
        on_disk = Path(shutil.copy(archive, disk))
        bench_extraction(on_disk, Path(disk), options.runs, "a disk")
        measure(Contestant("mmfw", archive, lambda path, out: ours(_EXTRACT, path, out)), features)
        subprocess.run(
            ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=features, check=True
        )
        bench_rehash("Rehash of the features", features, work, options.runs)
        for count, size in ((3_000, 120_000), (12_000, 30_000)):
            images = write_small(work / str(count), count, size)
            subprocess.run(ours(_RECORD, images, images), check=True)
            bench_rehash(f"Rehash of {count} files of {size // 1000} kB", images, work, options.runs)
        bench_cached(images, options.runs)
    print(f"\nload after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
